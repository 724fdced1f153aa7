"""Client keys on the admin plane: made, rotated, revoked; secrets are shown once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gateway.admin.access import problem
from gateway.admin.bodies import read_object, text_of
from gateway.admin.policy_api import reply
from gateway.keys import (
    KeyFileError,
    KeyRecord,
    NoSuchKeyError,
    TenantNameError,
    create_key,
    read_keys,
    revoke_key,
    rotate_key,
    shown_record,
)

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.control import Control
    from gateway.keys import KeyStore
    from gateway.keys_shared import SharedKeys

MAX_NOTE_CHARS = 256


class KeyApi:
    """The handlers. `file` is None where no keys are kept, `shared` where there is no Redis."""

    def __init__(self, control: Control, keys: KeyStore, file: Path | None, shared: SharedKeys | None) -> None:
        self._control = control
        self._keys = keys
        self._file = file
        self._shared = shared

    async def list(self, _: web.Request) -> web.Response:
        """All keys, without what would let anybody use them."""
        try:
            records = self._keys.records() if self._file is None else await asyncio.to_thread(read_keys, self._file)
        except KeyFileError as error:
            return problem(500, "internal", str(error))
        return reply({"keys": [shown_record(record) for record in records]})

    async def create(self, request: web.Request) -> web.Response:
        """A new key for a tenant."""
        said = await read_object(request, "tenant", "trusted", "note")
        tenant, note = text_of(said, "tenant", 64), text_of(said, "note", MAX_NOTE_CHARS)
        trusted = said.get("trusted", False)
        if not tenant or type(trusted) is not bool:
            return problem(400, "missing_parameter", 'send {"tenant": "…", "trusted": false, "note": "…"}')

        def make(file: Path) -> tuple[KeyRecord, str | None]:
            return create_key(file, tenant, time.time(), trusted=trusted, note=note)

        return await self._change(request, "create", make, status=201)

    async def rotate(self, request: web.Request) -> web.Response:
        """A new secret for a key."""
        return await self._change(request, "rotate", lambda file: rotate_key(file, request.match_info["id"]))

    async def revoke(self, request: web.Request) -> web.Response:
        """The end of a key."""
        return await self._change(
            request, "revoke", lambda file: (revoke_key(file, request.match_info["id"], time.time()), None)
        )

    async def _change(
        self,
        request: web.Request,
        action: str,
        act: Callable[[Path], tuple[KeyRecord, str | None]],
        status: int = 200,
    ) -> web.Response:
        if self._file is None:
            return problem(409, "no_state", "this gateway keeps nothing: start it with a state directory to have keys")
        target = request.match_info.get("id", "")
        try:
            record, key = await asyncio.to_thread(act, self._file)
            self._keys.refresh()
        except KeyFileError as error:
            await self._control.note(request, f"key.{action}", target[:64], "failed", {"why": str(error)})
            if isinstance(error, NoSuchKeyError):
                return problem(404, "not_found", f"there is no key {target[:64]!r}")
            if isinstance(error, TenantNameError):
                return problem(400, "invalid_value", str(error))
            return problem(409, "invalid_request", str(error))
        shared = await self._share()
        await self._control.note(request, f"key.{action}", record.id, "ok", {"tenant": record.tenant})
        shown: dict[str, Any] = {**shown_record(record), "shared": shared}
        return reply(shown if key is None else {**shown, "key": key}, status)

    async def _share(self) -> bool | None:
        """Tell the other gateways; whether they can know by now, None where there are none."""
        if self._shared is None:
            return None
        try:
            return await self._shared.sync()
        except KeyFileError:
            return False  # of what others made; who watches the keys says it
