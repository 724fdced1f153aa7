"""The command line's calls to a running gateway's admin plane: one request, one answer, errors in one line."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson

TIMEOUT_S = 5.0
WHERE = "say where it is (--admin URL, or HEADRACE_ADMIN=HOST:PORT), or start one with `headrace up`"
MAX_ANSWER_BYTES = 64 * 1024 * 1024  # a fleet of thousands of workers takes a few MiB


class AdminError(OSError):
    """The gateway could not be asked, or did not do what was asked; the message is one line for people.

    `status` is None where there was no answer; `value` is what the answer says beside its message.
    """

    def __init__(self, message: str, status: int | None = None, value: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.value: Mapping[str, Any] = value or {}


@dataclass(frozen=True, slots=True)
class Admin:
    """A gateway's admin listener, the token to call it with, and what helps where that is not enough."""

    url: str
    token: str | None = field(default=None, repr=False)
    remedy: str = ""

    def call(
        self,
        method: str,
        path: str,
        body: bytes | Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[Any, str]:
        """The JSON value of the answer and its ETag. A mapping is sent as JSON. Raises `AdminError`."""
        connection = connect(self.url, timeout_s)
        fields = {"accept": "application/json", **(headers or {})}
        if self.token is not None:
            fields["authorization"] = f"Bearer {self.token}"
        if isinstance(body, Mapping):
            body = orjson.dumps(body)
            fields["content-type"] = "application/json"
        try:
            connection.request(method, path, body, fields)
            answer = connection.getresponse()
            raw = answer.read(MAX_ANSWER_BYTES)
        except ConnectionRefusedError:
            raise AdminError(f"no gateway answers at {self.url}; {WHERE}") from None
        except (OSError, http.client.HTTPException) as error:
            raise AdminError(f"{self.url}: {type(error).__name__} {error}".rstrip()) from None
        finally:
            connection.close()
        try:
            value = decode(answer.status, raw, f"{self.url}{path}")
        except AdminError as error:
            if error.status == 401 and self.remedy:
                raise AdminError(f"{error}; {self.remedy}", error.status, error.value) from None
            raise
        return value, answer.getheader("etag", "").strip('"')

    def get(self, path: str, *, timeout_s: float = TIMEOUT_S) -> Any:
        """The JSON value at `path`. Raises `AdminError`."""
        return self.call("GET", path, timeout_s=timeout_s)[0]

    def post(self, path: str, body: bytes | Mapping[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S) -> Any:
        """What the gateway answers to a POST. Raises `AdminError`."""
        return self.call("POST", path, body if body is not None else b"", timeout_s=timeout_s)[0]


def get(base_url: str, path: str, *, token: str | None = None, timeout_s: float = TIMEOUT_S) -> Any:
    """The JSON value at `path` of the admin listener at `base_url`. Raises `AdminError`."""
    return Admin(base_url, token).get(path, timeout_s=timeout_s)


def connect(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """A connection that will be opened by its first request."""
    where = urlsplit(url)
    try:
        port = where.port
    except ValueError:
        port = -1  # no number, or none that a port can have
    if where.scheme not in {"http", "https"} or not where.hostname or port == -1 or where.path.strip("/"):
        raise AdminError(f"{url} is not the URL of an admin listener, as http://127.0.0.1:8081 is")
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    return kind(where.hostname, port, timeout=timeout_s)


def decode(status: int, body: bytes, url: str) -> Any:
    """The value of a good answer; `AdminError` with the gateway's own words for any other."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise AdminError(f"{url} answered {status} with something that is not JSON", status) from None
    if status >= 400:
        known = value if isinstance(value, Mapping) else None
        # With the gateway's own words nobody needs to see how it was asked.
        raise AdminError(message_of(value) or f"{url} answered {status}: no reason given", status, known)
    return value


def message_of(value: object) -> str:
    """The words of an error body in OpenAI's shape; empty where it has none."""
    error = value.get("error") if isinstance(value, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message) if message else ""
