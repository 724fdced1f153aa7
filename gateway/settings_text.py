"""From text to the values of the settings: addresses, `${NAME:-default}`, `file:` secrets, and what is wrong."""

from __future__ import annotations

import difflib
import ipaddress
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError

from policies.decode import said_of

MAX_SETTINGS_BYTES = 1 << 20
MAX_SECRET_BYTES = 64 * 1024
MAX_SHOWN = 80
MAX_UNIX_BYTES = 107
"""Linux's `sun_path` less its NUL."""
_UNIX = "unix:"

_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the settings: where, what, and the value found (empty where it must not be shown).

    `source`: the environment variable or option that gave it; empty for what the settings file has to answer for.
    """

    path: str
    message: str
    value: str = ""
    source: str = ""

    def __str__(self) -> str:
        got = f", got {self.value}" if self.value else ""
        inside = "." in self.path or "[" in self.path
        where = [self.source, self.path if inside or not self.source else ""]
        return ": ".join([*filter(None, where), f"{self.message}{got}"])


class SettingsError(ValueError):
    """The settings cannot be used. `problems` has all of them; `str()` is one line each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port to listen on; port 0 lets the system choose. A host that is a path is a unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        if self.is_unix:
            return f"{_UNIX}{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_unix(self) -> bool:
        """Whether it is a unix socket's path."""
        return self.host.startswith("/")

    def meets(self, other: Address) -> bool:
        """Whether two listeners at these addresses are in each other's way, as far as can be told without a look-up."""
        if self.is_unix or other.is_unix or self.port != other.port or self.port == 0:
            return False
        hosts = ["127.0.0.1" if each.host.lower() == "localhost" else each.host for each in (self, other)]
        if hosts[0] == hosts[1]:
            return True
        try:
            one, two = map(ipaddress.ip_address, hosts)
        except ValueError:
            return False
        # A listener on every address of IPv6 takes those of IPv4 too.
        return any(a.is_unspecified and a.version >= b.version for a, b in ((one, two), (two, one)))

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can reach it."""
        if self.host == "localhost" or self.is_unix:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name may mean anything


def parse_address(value: object) -> Address:
    """`host:port`, `[v6]:port`, `:port` (every interface), a bare port (this host only) or `unix:/path`.

    Raises `ValueError`.
    """
    if isinstance(value, Address):
        return value
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise ValueError("must be host:port")
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if not path.startswith("/") or len(path.encode()) > MAX_UNIX_BYTES:
            raise ValueError(f"must be unix:/path with a path of at most {MAX_UNIX_BYTES} bytes")
        return Address(path, 0)
    if "://" in text:
        raise ValueError("must be host:port, not a URL")
    if text.isascii() and text.isdigit():
        text = f"127.0.0.1:{text}"
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise ValueError("must be host:port with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = str(ipaddress.IPv6Address(host[1:-1]))
    elif host == "":
        host = "0.0.0.0"
    elif not _HOST.fullmatch(host):
        raise ValueError("must be host:port; an IPv6 address needs brackets")
    return Address(host, int(port))


def callable_url(address: Address) -> str:
    """Where a listener at this address is reached from this host."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    return f"http://{Address(host, address.port)}"


def read_yaml(path: Path, problems: list[Problem]) -> dict[str, object]:
    """The mapping in a settings file; what is wrong with it goes to `problems`."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SETTINGS_BYTES + 1)
    except OSError as error:
        problems.append(Problem("", f"cannot read settings file: {error.strerror or error}"))
        return {}
    if len(raw) > MAX_SETTINGS_BYTES:
        problems.append(Problem("", f"settings file must be at most {MAX_SETTINGS_BYTES} bytes"))
        return {}
    return _mapping(raw, problems)


def _mapping(raw: bytes, problems: list[Problem]) -> dict[str, object]:
    try:
        document = _load(raw)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        problems.append(Problem("", f"is not YAML: {' '.join(str(error).split())}"))
        return {}
    if document is None:
        return {}
    if not isinstance(document, dict):
        problems.append(Problem("", "must be a mapping of keys to values", _shown(document)))
        return {}
    return {str(key): value for key, value in document.items()}


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases (nothing here needs one, and they multiply) and without repeated keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call] # of the stubs
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float | bool | None) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            if isinstance(key, str | int | float | bool | None):
                seen.add(key)
        return super().construct_mapping(node, deep)


def _load(raw: bytes | str) -> object:
    return yaml.load(raw, _Loader)  # noqa: S506 - a SafeLoader that allows less


def parse_yaml_value(text: str, path: str, problems: list[Problem]) -> object:
    """A value given as YAML in one string (an environment variable that holds a list)."""
    try:
        return _load(text)
    except (yaml.YAMLError, RecursionError) as error:
        problems.append(Problem(path, f"is not YAML: {' '.join(str(error).split())}"))
        return None


def expand(value: object, env: Mapping[str, str], problems: list[Problem], path: str = "") -> object:
    """`value` with `${NAME}` and `${NAME:-default}` replaced in every string; a name without a value is a problem."""
    if isinstance(value, dict):
        return {key: expand(item, env, problems, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [expand(item, env, problems, f"{path}[{index}]") for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def replaced(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name is None:
            return "${"
        found = env.get(name)
        if found or (found is not None and default is None):
            return found
        if default is None:
            problems.append(Problem(path, f"environment variable {name} is not set and ${{{name}}} has no default"))
            return ""
        return str(default)

    return _VARIABLE.sub(replaced, value)


def read_secrets(value: object, keys: frozenset[str], problems: list[Problem], path: str = "", key: str = "") -> object:
    """`value` with `file:/path` under the named keys replaced by the first line of that file."""
    if isinstance(value, dict):
        return {
            name: read_secrets(item, keys, problems, f"{path}.{name}" if path else str(name), str(name))
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [read_secrets(item, keys, problems, f"{path}[{index}]") for index, item in enumerate(value)]
    if not isinstance(value, str) or key not in keys or not value.startswith("file:"):
        return value
    file = Path(value.removeprefix("file:")).expanduser()
    try:
        with file.open("rb") as opened:
            mode = stat.S_IMODE(file.stat().st_mode)
            text = opened.read(MAX_SECRET_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(path, f"cannot read secret file {file}: {getattr(error, 'strerror', None) or error}"))
        return ""
    if mode & 0o022:
        problems.append(Problem(path, f"secret file {file} can be changed by others: chmod 600 it", f"mode {mode:04o}"))
    return text.split("\n", 1)[0].rstrip("\r")


def problems_of(error: ValidationError, secret_keys: frozenset[str]) -> list[Problem]:
    """What pydantic found, as our problems; values of secrets are left out."""
    found = []
    for each in error.errors():
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in each["loc"]).removeprefix(".")
        message = said_of(each["type"], each.get("ctx", {})) or each["msg"].removeprefix("Value error, ")
        message = message.replace("Input should be ", "must be ", 1)
        if each["type"] == "extra_forbidden":
            message = "unknown key"
        elif each["type"] == "missing":
            message = "is required"
        last = each["loc"][-1] if each["loc"] else ""
        # What holds other values may hold a secret.
        nested = isinstance(each["input"], dict | list | tuple)
        hide = nested or last in secret_keys or each["type"] in {"missing", "extra_forbidden"}
        found.append(Problem(path, message, "" if hide else _shown(each["input"])))
    return found


def sourced(problems: Sequence[Problem], sources: Mapping[str, str]) -> list[Problem]:
    """The same problems; those of a value that `sources` (by its key) has name where it came from."""
    return [
        replace(one, source=source) if (source := sources.get(re.split(r"[.\[]", one.path)[0])) else one
        for one in problems
    ]


def suggestions(problems: Sequence[Problem], *models: type[BaseModel]) -> list[Problem]:
    """The same problems; an unknown key that resembles a known one says so."""
    known = [name for model in models for name in model.model_fields]
    return list(_suggested(problems, known))


def _suggested(problems: Sequence[Problem], known: Sequence[str]) -> Iterator[Problem]:
    for problem in problems:
        close = difflib.get_close_matches(problem.path.rpartition(".")[2], known, n=1)
        if problem.message == "unknown key" and close:
            yield replace(problem, message=f"unknown key, did you mean {close[0]}?")
        else:
            yield problem


def _shown(value: object) -> str:
    text = "".join(c if c.isprintable() else "?" for c in repr(value))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
