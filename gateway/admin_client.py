"""The command line's calls to a running gateway's admin plane: one request, one answer, errors in one line."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024  # a fleet of thousands of workers takes a few MiB


class AdminError(OSError):
    """The gateway could not be asked, or did not do what was asked; the message is one line for people."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def get(base_url: str, path: str, *, token: str | None = None, timeout_s: float = TIMEOUT_S) -> Any:
    """The JSON value at `path` of the admin listener at `base_url`. Raises `AdminError`."""
    connection = connect(base_url, timeout_s)
    headers = {"accept": "application/json"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(MAX_ANSWER_BYTES)
    except ConnectionRefusedError:
        raise AdminError(f"no gateway answers at {base_url}; start one with `headrace up`") from None
    except (OSError, http.client.HTTPException) as error:
        raise AdminError(f"{base_url}: {type(error).__name__} {error}".rstrip()) from None
    finally:
        connection.close()
    return decode(answer.status, body, f"{base_url}{path}")


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
        raise AdminError(f"{url} answered {status}: {message_of(value)}", status)
    return value


def message_of(value: object) -> str:
    """The words of an error body in OpenAI's shape."""
    error = value.get("error") if isinstance(value, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message) if message else "no reason given"
