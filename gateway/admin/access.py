"""Who may read the admin plane: this host, or whoever has the token; and no web page from elsewhere."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

OPEN = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths that need no token: orchestrators and Prometheus read them, and they say nothing about any request."""

TOKEN_FILE = "admin.token"  # noqa: S105 - a file name
TOKEN_BYTES = 32
MAX_TOKEN_BYTES = 4096


def read_or_make_token(state_dir: Path) -> str:
    """The admin token of this state directory, made on first use with mode 0600. Raises `OSError`."""
    path = state_dir / TOKEN_FILE
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        with path.open("rb") as file:
            return file.read(MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    token = secrets.token_urlsafe(TOKEN_BYTES)
    with os.fdopen(fd, "w") as file:
        file.write(token + "\n")
    return token


def problem(status: int, code: str, message: str) -> web.Response:
    """An error in the shape the data plane has too."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return web.json_response({"error": {"message": message, "type": kind, "param": None, "code": code}}, status=status)


def guard(token: str | None, *, loopback: bool) -> Middleware:
    """A middleware that lets nobody in who should not be.

    1. A browser page of another origin is refused: it would act with this host's access (`Origin`).
    2. On a loopback listener the `Host` must be a loopback name: a DNS name that some page made point here is not.
    3. Elsewhere everything but `OPEN` needs the token.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get(hdrs.HOST, "")
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and urlsplit(origin).netloc != host:
            return problem(403, "permission_denied", "pages of another origin may not call the admin plane")
        if loopback and not is_loopback_host(host):
            return problem(403, "permission_denied", "the Host header must name this host: localhost, 127.0.0.1 or ::1")
        if not loopback and request.path not in OPEN and not _has_token(request, token):
            answer = problem(401, "invalid_api_key", "the admin plane needs Authorization: Bearer <admin token>")
            answer.headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
            return answer
        return await handler(request)

    return check


def is_loopback_host(host: str) -> bool:
    """Whether a `Host` header names this host and nothing that a name server could redirect."""
    try:
        name = urlsplit(f"//{host}").hostname
        return name == "localhost" or (name is not None and ipaddress.ip_address(name).is_loopback)
    except ValueError:
        return False


def _has_token(request: web.Request, token: str | None) -> bool:
    scheme, _, given = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    return (
        token is not None
        and scheme.lower() == "bearer"
        and hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token.encode())
    )
