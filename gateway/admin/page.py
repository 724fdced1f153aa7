"""The dashboard's files, as they lie in `dashboard/`: read once, served to anybody, and of no use without the API.

The page holds no data and no secret: it makes the same calls as everybody else, with the token that its user gives it.
The policy below lets a browser load nothing but these files and call nothing but this listener, so that even a name
out of a hostile document or report, were it ever shown as markup, could not do anything.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from gateway.admin.access import problem

DIRECTORY: Final = Path(__file__).parent / "dashboard"
INDEX: Final = "index.html"
TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    hdrs.CACHE_CONTROL: "no-cache",  # kept, but asked for each time: the page and its scripts change together
}


class Page:
    """The handlers."""

    def __init__(self) -> None:
        self._parts = {path.name: path.read_bytes() for path in DIRECTORY.iterdir() if path.suffix in TYPES}
        # One for all: a page whose parts are of two versions does not work.
        self._tag = sha256(b"".join(self._parts[name] for name in sorted(self._parts))).hexdigest()[:16]

    @staticmethod
    def elsewhere(target: str) -> Handler:
        """A handler that sends browsers to `target`, relative to the path asked: a proxy may put a prefix before it."""

        async def redirect(_: web.Request) -> web.Response:
            return web.Response(status=302, headers={hdrs.LOCATION: target})

        return redirect

    async def index(self, request: web.Request) -> web.Response:
        """The page itself."""
        return self._answer(request, INDEX)

    async def part(self, request: web.Request) -> web.Response:
        """One of its files, by name."""
        name = request.match_info["name"]
        if name not in self._parts:
            return problem(404, "not_found", "the dashboard has no such part")
        return self._answer(request, name)

    def _answer(self, request: web.Request, name: str) -> web.Response:
        if any(each.value == self._tag for each in request.if_none_match or ()):
            answer = web.Response(status=304)
        else:
            kind = TYPES[Path(name).suffix]
            answer = web.Response(body=self._parts[name], content_type=kind, charset="utf-8")
        answer.headers.update(HEADERS)
        answer.etag = self._tag
        return answer
