"""Who may do what on the admin plane, by role; and no web page from elsewhere."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
import stat
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from gateway.tenants import FAILURES_PER_S, FailureThrottle, Throttle

TOKEN_BYTES = 32
MAX_TOKEN_BYTES = 4096

CALLS_PER_S, CALLS_BURST = 50.0, 500.0
"""Calls that one address may make, this host's own apart; more are answered 429. A dashboard makes two a second."""

CHANGES_PER_S, CHANGES_BURST = 50.0, 1000.0
"""Changes that one address may make, this host too: about as fast as one caller gets its answers."""


class Role(StrEnum):
    """What a token allows; each role may do what those before it may."""

    VIEWER = "viewer"  # read
    OPERATOR = "operator"  # change policies and workers
    ADMIN = "admin"  # and keys


RANK: Final = {role: rank for rank, role in enumerate(Role)}


class Need(StrEnum):
    """What a call asks of its caller."""

    NOTHING = "nothing"  # orchestrators and Prometheus read these, and they say nothing about any request
    READ = "read"  # a viewer; on a loopback listener anybody
    OPERATE = "operate"
    ADMINISTER = "administer"


LEAST: Final[Mapping[Need, Role]] = {
    Need.READ: Role.VIEWER,
    Need.OPERATE: Role.OPERATOR,
    Need.ADMINISTER: Role.ADMIN,
}


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who calls: with a token's role, or without one."""

    role: Role | None
    peer: str


SAFE: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})
_NOT_IN_HOSTS: Final = re.compile(r"[^A-Za-z0-9.\-\[\]:]")

VISITOR: Final = web.RequestKey("visitor", Visitor)


class TokenError(Exception):
    """A token file that cannot be used; says which and why."""


def token_file(role: Role) -> str:
    """Its name in the state directory."""
    return f"{role}.token"


@dataclass(frozen=True, slots=True)
class Tokens:
    """The token of each role. `made`: those that were made just now, to be shown once; `kept_in`: the directory that
    has them, None where they are for this run only."""

    by_role: Mapping[Role, str]
    made: Mapping[Role, str]
    kept_in: Path | None = None

    def role_of(self, authorization: str) -> Role | None:
        """The role that a value of `Authorization` has; None for no token of ours."""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        sent = given.strip().encode("utf-8", "surrogateescape")
        found = None
        for role, token in self.by_role.items():
            # All are compared, so that the time tells nothing about which one was nearly right.
            if hmac.compare_digest(sent, token.encode()):
                found = role
        return found


def read_or_make_tokens(state_dir: Path | None, admin: str | None = None) -> Tokens:
    """The tokens of this state directory, made on first use with mode 0600; `admin` stands in for that role's.

    Without a directory they are made for this run only. Raises `OSError` and `TokenError`.
    """
    found: dict[Role, str] = {}
    made: dict[Role, str] = {}
    for role in Role:
        if role is Role.ADMIN and admin is not None:
            found[role] = admin
        elif state_dir is None:
            found[role] = made[role] = secrets.token_urlsafe(TOKEN_BYTES)
        else:
            found[role], fresh = _read_or_make(state_dir / token_file(role))
            if fresh:
                made[role] = found[role]
    return Tokens(found, made, state_dir)


def read_token(path: Path) -> str:
    """The token in a file. Raises `OSError`, and `TokenError` for a file that others can read or that holds none."""
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        text = file.read(MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    if stat.S_IMODE(mode) & 0o077:
        raise TokenError(f"{path} is open to others (mode {stat.S_IMODE(mode):04o}); set it to 0600, or remove it")
    if not text:
        raise TokenError(f"{path} is empty; remove it to have a new token made")
    return text


def _read_or_make(path: Path) -> tuple[str, bool]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(token + "\n")
    try:
        os.link(new, path)  # whole or not at all, and never over another process's
    except FileExistsError:
        return read_token(path), False
    finally:
        new.unlink()
    return token, True


def problem(status: int, code: str, message: str, **more: object) -> web.Response:
    """An error in the shape the data plane has too; `more` stands beside `error`."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return web.json_response({"error": error, **more}, status=status)


async def _unnoted(_: web.Request) -> None:
    """A refused change that nobody writes down."""


def guard(
    tokens: Tokens,
    need_of: Callable[[web.Request], Need],
    *,
    loopback: bool,
    clock: Callable[[], float] = time.monotonic,
    on_denied: Callable[[web.Request], Awaitable[None]] = _unnoted,
) -> Middleware:
    """A middleware that lets nobody in who should not be.

    1. A browser page of another origin is refused: it would act with this host's access (`Origin`).
    2. On a loopback listener the `Host` must be a loopback name: a DNS name that some page made point here is not.
    3. A token that is no token of ours is refused, wherever it is sent; too many from one address are answered 429.
    4. What a call needs (`need_of`) its caller must have. On loopback reads need nothing. `on_denied` hears of changes
       that somebody with too small a role asked for.
    5. Too many calls from one address are answered 429.
    """
    throttle = FailureThrottle()
    calls, changes = Throttle(CALLS_PER_S, CALLS_BURST), Throttle(CHANGES_PER_S, CHANGES_BURST)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get(hdrs.HOST, "")
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and not _same_origin(origin, host):
            return problem(403, "permission_denied", "pages of another origin may not call the admin plane")
        if loopback and not is_loopback_host(host):
            return problem(403, "permission_denied", "the Host header must name this host: localhost, 127.0.0.1 or ::1")
        need = need_of(request)
        if need is Need.NOTHING:
            return await handler(request)
        given = request.headers.get(hdrs.AUTHORIZATION)
        role = tokens.role_of(given) if given is not None else None
        if given is not None and role is None:
            if throttle.observe_failure(request.remote or "", clock()):
                return _too_many("too many wrong tokens came from this address; wait", FAILURES_PER_S)
            return _unknown("this is no token of this gateway")
        if role is None and not (loopback and need is Need.READ):
            return _unknown(f"this needs Authorization: Bearer <token of role {LEAST[need]}>")
        peer = request.remote or ""
        if not is_loopback_address(peer) and calls.observe(peer, clock()):
            return _too_many(f"more than {CALLS_PER_S:g} calls a second came from this address; wait", CALLS_PER_S)
        request[VISITOR] = Visitor(role, peer)
        changing = request.method not in SAFE
        if role is not None and RANK[role] < RANK[LEAST[need]]:
            if changing:
                await on_denied(request)
            return problem(403, "permission_denied", f"this needs role {LEAST[need]}; the token's role is {role}")
        if changing and need is not Need.READ and changes.observe(peer, clock()):
            message = f"more than {CHANGES_PER_S:g} changes a second came from this address; wait"
            return _too_many(message, CHANGES_PER_S)
        return await handler(request)

    return check


def _same_origin(origin: str, host: str) -> bool:
    """Whether a page of `origin` came from this very listener, as its user's browser reached it."""
    try:
        return urlsplit(origin).netloc == host != ""
    except ValueError:
        return False


def _too_many(message: str, per_s: float) -> web.Response:
    answer = problem(429, "rate_limit_exceeded", message)
    answer.headers[hdrs.RETRY_AFTER] = str(max(1, round(1 / per_s)))
    return answer


def _unknown(message: str) -> web.Response:
    answer = problem(401, "invalid_api_key", message)
    answer.headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    return answer


def is_loopback_address(address: str) -> bool:
    """Whether a peer is on this host."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_loopback_host(host: str) -> bool:
    """Whether a `Host` header names this host and nothing that a name server could redirect."""
    if _NOT_IN_HOSTS.search(host):
        return False
    try:
        name = urlsplit(f"//{host}").hostname
        return name == "localhost" or (name is not None and ipaddress.ip_address(name).is_loopback)
    except ValueError:
        return False
