"""Calls to the admin API of a running gateway, with a token."""

import io
import json
from typing import Any

from running_gateway import Running, settings_for

ADMIN = "t0ken-of-the-test"
POOLS = "pools: {short-chat: {max_budget_tokens: 4096, may_borrow: [long-context]}, long-context: {}}\n"


class Api:
    """Calls with a token; None sends none."""

    def __init__(self, gateway: Running, token: str | None = ADMIN) -> None:
        self.gateway = gateway
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.etag = ""

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data: Any = body if isinstance(body, str | bytes | None) else json.dumps(body)
        if body is not None and not isinstance(body, str | bytes):
            headers = {"Content-Type": "application/json", **headers}
        if isinstance(data, str):
            data = io.BytesIO(data.encode())  # aiohttp warns of large texts
        url = f"{self.gateway.admin}/admin/v1/{path}"
        async with self.gateway.session.request(method, url, data=data, headers={**self.headers, **headers}) as answer:
            self.etag = answer.headers.get("ETag", "")
            raw = await answer.read()
            return answer.status, json.loads(raw) if "json" in answer.content_type else raw.decode()

    async def get(self, path: str, **headers: str) -> Any:
        """What is there; it has to be."""
        status, found = await self.call("GET", path, **headers)
        assert status == 200, found
        return found

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and answer."""
        return await self.call("POST", path, body, **headers)

    async def put(self, body: Any, match: str = "*", query: str = "") -> tuple[int, Any]:
        """A policy for the gateway."""
        return await self.call("PUT", f"policy{query}", body, **{"If-Match": match})


def settings(tmp_path: Any, workers: Any, **more: Any) -> Any:
    """A gateway's settings with the admin token of these tests."""
    return settings_for(tmp_path, workers, **{"admin_token": ADMIN, **more})
