"""Where requests go: what each says, whether anybody is there, and what an error means."""

from __future__ import annotations

import asyncio
import os
import resource
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import orjson

from loadtest.live_figures import Outcome, judge

PREFLIGHT_S: Final = 10.0
# Servers close connections that were idle for some seconds; one that closes just as it is used again is no failure.
IDLE_S: Final = 2.0
ERROR_BYTES: Final = 1 << 16
SPARE_FILES: Final = 64
MAX_IN_FLIGHT: Final = 900  # a process may usually open 1024 files
USER_AGENT: Final = "headrace-loadtest"


class LiveError(Exception):
    """Nothing can be sent. The message says what was tried, what came of it and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go and what each says."""

    url: str  # without a path
    key: str = field(default="", repr=False)
    model: str = ""  # empty: the first that there is
    priority: str = ""
    timeout_s: float = 120.0
    max_in_flight: int = MAX_IN_FLIGHT
    ignore_eos: bool = True

    @property
    def headers(self) -> dict[str, str]:
        """Of every request."""
        headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        if self.priority:
            headers["X-Headrace-Priority"] = self.priority
        return headers


def open_session() -> aiohttp.ClientSession:
    """A client that does nothing by itself: no cookies, no proxies of the environment, no bound on connections."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )


def make_room(connections: int) -> None:
    """Let this process open so many connections. Raises LiveError where it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise LiveError(
                f"--max-in-flight {connections}: needs {wanted} open files, and this process may open {hard}; ask for "
                f"at most {hard - SPARE_FILES}, or raise `ulimit -n`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def find_model(session: aiohttp.ClientSession, target: Target) -> str:
    """The model to ask for, from a server that is there. Raises LiveError."""
    where = f"{target.url}/v1/models"
    try:
        async with asyncio.timeout(PREFLIGHT_S):
            async with session.get(where, headers=target.headers, allow_redirects=False) as answer:
                status, body = answer.status, await answer.content.read(ERROR_BYTES)
    except TimeoutError:
        raise LiveError(
            f"{where}: no answer in {PREFLIGHT_S:.0f} s; is that a gateway? Say where one is with --url"
        ) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise LiveError(
            f"{target.url}: nobody answers ({why(error)}); start a gateway (`headrace up`), or say where one is "
            f"with --url"
        ) from None
    if status in {401, 403}:
        _, _, message = error_of(status, body)
        raise LiveError(f"{where}: {status} {message or 'refused'} (give a key with --key or HEADRACE_API_KEY)")
    if target.model:
        return target.model  # servers that list nothing may know it
    if status == 404:
        raise LiveError(f"{where}: 404, so that is no data listener of a gateway; say where one is with --url")
    names: list[str] = []
    with suppress(orjson.JSONDecodeError, AttributeError, TypeError, KeyError):
        names = [one["id"] for one in orjson.loads(body)["data"] if type(one["id"]) is str]
    if status != 200 or not names:
        said = "an empty list" if status == 200 else f"status {status}"
        raise LiveError(f"{where}: names no model ({said}); wait until a worker is there, or say which with --model")
    return names[0]


def error_of(status: int, body: bytes) -> tuple[Outcome, str, str]:
    """The outcome, code and message of an answer that is not 200."""
    error: Any = None
    with suppress(orjson.JSONDecodeError, AttributeError):
        error = orjson.loads(body).get("error")
    if type(error) is str:
        error = {"message": error}
    if type(error) is not dict:
        return judge(status), f"http_{status}", ""
    kind, code, message = named(error, f"http_{status}")
    return judge(status, kind), code, message


def named(error: dict[str, Any], otherwise: str) -> tuple[str, str, str]:
    """(type, code, message) of an error's object. Engines put a number where the code should be."""
    code = error.get("code")
    return (
        str(error.get("type") or ""),
        code if type(code) is str and code else otherwise,
        str(error.get("message") or ""),
    )


def why(error: BaseException) -> str:
    """In words, without the address, which is said elsewhere."""
    inner = getattr(error, "os_error", None) or error
    number = getattr(inner, "errno", None)
    if type(number) is int and number > 0:
        return os.strerror(number)
    return (getattr(inner, "strerror", None) or str(inner) or type(inner).__name__)[:200]
