"""One of several gateway processes: `python -m gateway.supervision.child SETTINGS DATA ADMIN FINAL` (descriptors).

Settings come over a descriptor, so that no secret shows in a command line or an environment. The sockets are the
supervisor's: connections wait in them while a process is replaced.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import SecretStr

from gateway.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.app import Addresses


class _Face:
    """Tells the supervisor over the standard output."""

    def serving(self, addresses: Addresses) -> None:
        """The gateway accepts traffic."""
        _say({"event": "ready", "data": addresses.data})

    def trouble(self, message: str) -> None:
        """Something went wrong, in one line."""
        sys.stdout.write(message + "\n")
        sys.stdout.flush()

    def stopped(self) -> None:
        """Nothing runs any more."""


def write_settings(settings: Settings) -> bytes:
    """The settings for a child, secrets included."""

    def plain(value: object) -> str:
        return value.get_secret_value() if isinstance(value, SecretStr) else str(value)

    values = settings.model_dump(mode="python") | {"listen": str(settings.listen), "admin": str(settings.admin)}
    return orjson.dumps(values, default=plain)


def _say(value: Mapping[str, Any]) -> None:
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    """Run the gateway; returns the exit status."""
    from gateway.cli import run_loop
    from gateway.serve import Inherited, run_serve

    settings_fd, data_fd, admin_fd, final_fd, fresh = map(int, argv[1:6])
    with os.fdopen(settings_fd, "rb") as file:
        file.seek(0)
        settings = Settings.model_validate(orjson.loads(file.read()))
    data, admin = socket.socket(fileno=data_fd), socket.socket(fileno=admin_fd)

    def end(text: bytes) -> None:
        with os.fdopen(final_fd, "wb") as file:
            file.write(text)

    return run_loop(run_serve(settings, _Face(), Inherited(data, admin, bool(fresh), end)))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
