"""What the environment says to the worker side. The only file of this package that reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DEFAULT_REDIS = "redis://127.0.0.1:6379/0"
EMBEDDED_URL = "redis.url"  # in the gateway's state directory
DEFAULT_FLEET = "default"
MAX_SECRET_BYTES = 64 * 1024


class SettingsError(ValueError):
    """A setting that cannot be used; the message is one line that names it."""


def redis_url(given: str | None = None) -> str:
    """Where agents report; may be `file:/path`.

    What was `given`, else `HEADRACE_REDIS`, else `embedded`: the server that a gateway on this host has started for
    itself. It leaves its URL in the state directory: `HEADRACE_STATE_DIR`, else the user's. Where there is none and
    nothing was said, Redis' own port on this host. URLs are the gateways' own, see `workers/redis_client.py`.
    """
    embedded = _user_state() / EMBEDDED_URL
    found = f"file:{embedded}" if embedded.is_file() else DEFAULT_REDIS
    said = given or os.environ.get("HEADRACE_REDIS") or found
    if said == "embedded":
        if not embedded.is_file():
            raise SettingsError(f"redis: embedded is a running gateway's of this host, and none has left {embedded}")
        said = found
    url = secret(said, "redis")
    from workers.redis_client import check_url  # its imports are slow, and few commands need it

    try:
        check_url(url)
    except ValueError as error:
        raise SettingsError(f"redis: {error}; give the URL that the gateways have") from None
    return url


def fleet(given: str | None = None) -> str:
    """The fleet's name: what was `given`, else `HEADRACE_FLEET`, else `default`."""
    return given or os.environ.get("HEADRACE_FLEET") or DEFAULT_FLEET


def engine_token(given: str | None = None) -> str | None:
    """Bearer token for the engine: what was `given`, else `HEADRACE_ENGINE_TOKEN`, else none; may be `file:/path`."""
    value = given or os.environ.get("HEADRACE_ENGINE_TOKEN")
    return secret(value, "token") if value else None


def secret(value: str, name: str) -> str:
    """`value` itself, or the stripped content of the file that `file:/path` names."""
    if not value.startswith("file:"):
        return value
    path = Path(value.removeprefix("file:")).expanduser()
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SECRET_BYTES + 1)
        text = raw.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name}: cannot read {path}: {error}") from error
    if not text or len(raw) > MAX_SECRET_BYTES:
        raise SettingsError(f"{name}: {path} must hold 1 to {MAX_SECRET_BYTES} bytes")
    return text


def engines_dir() -> Path:
    """Where installed engines and generated models are kept, outside any checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "headrace" / "engines"


def state_dir(given: str | None = None) -> Path:
    """Where a supervisor keeps logs and the record of what runs: `given`, else `workers` in the state directory."""
    if given:
        return Path(given).expanduser()
    return _user_state() / "workers"


def _user_state() -> Path:
    # The gateway's own order, see `gateway/settings.py`: what it leaves there is looked for by the same names.
    if given := os.environ.get("HEADRACE_STATE_DIR"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "headrace"


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """This process's environment with `changes`; None takes a variable out."""
    merged: dict[str, str | None] = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}
