"""The published language between workers and gateways: what a worker says about itself, and where.

A report is one JSON object under `headrace:{fleet}:worker:<id>`, set with a time to live and rewritten at most a
second apart; `headrace:{fleet}:workers` is the set of ids. The braces are a Redis Cluster hash tag: all keys of a
fleet live in one slot. Readers trust no field: `decode` checks type and range of everything and names what is wrong.
Times inside a report are not compared with the reader's clock; a reader measures age from when it first saw a
sequence number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import unquote

import orjson

REPORT_TTL_S = 10.0
REPORT_INTERVAL_S = 1.0
MAX_REPORT_BYTES = 64 * 1024
MAX_MODELS = 256
STATES = ("starting", "ready", "draining", "unreachable")

MAX_COUNT = 2**53  # of anything summed since the engine started: exact in every JSON reader
MAX_REQUESTS = 1_000_000  # at one worker at one time
MAX_CONTEXT_TOKENS = 10**9
MAX_KV_TOKENS = 10**12
MAX_SECONDS = 10**6

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LINE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,256}")  # one printable line: it goes to logs and screens
_URL = re.compile(
    r"https?://(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251})|\[(?P<v6>[0-9A-Fa-f:.]{2,45})\])(?::(?P<port>\d{1,5}))?"
)
_SOCKET = re.compile(r"/[!-~]{1,106}")  # sun_path has 108 bytes with its end
_SHOWN_CHARACTERS = 80


class BadReport(ValueError):  # noqa: N818 - it is a report that is bad, and readers of it count bad reports
    """A report that cannot be believed. Says which `field`, its `value` (cut to one short line) and `why`."""

    def __init__(self, field: str, value: object, why: str) -> None:
        self.field = field
        self.value = _shown(value)
        self.why = why
        super().__init__(f"{field}: {why}, got {self.value}")


def workers_key(fleet: str) -> str:
    """Name of the set of worker ids of a fleet."""
    return f"headrace:{{{fleet}}}:workers"


def report_key(fleet: str, worker_id: str) -> str:
    """Name of the key that holds one worker's report."""
    return f"headrace:{{{fleet}}}:worker:{worker_id}"


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One report. Counters are totals since the engine started; tokens are the engine's own."""

    id: str
    incarnation: str  # random per engine start
    sequence: int  # grows by one a report
    url: str
    engine: str  # vllm | llamacpp | simulator | …
    pool: str
    models: tuple[str, ...]
    state: str = "ready"  # starting | ready | draining | unreachable
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_tokens: int | None = None
    kv_usage: float | None = None  # 0 … 1
    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    version: str = ""
    preset: str | None = None
    supports_priority: bool = False
    supports_continuation: bool = False
    ttft_p50_s: float | None = None  # over about the last minute, by the engine's own histograms; as the ones below
    ttft_p95_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    device_utilization: float | None = None  # 0 … 1, of the busiest of its devices
    device_used_bytes: int | None = None  # by everybody, summed over its devices
    device_bytes: int | None = None
    adapters: tuple[str, ...] = ()  # LoRA adapters among `models`
    driver: str = ""
    weights: str = ""  # fingerprint of the files that the model was loaded from


WORKER_URL = "http://host[:port], https://host[:port] or unix:///path"


def is_worker_id(value: str) -> bool:
    """Whether this may name a worker, pool or fleet: 1 to 128 of letters, digits, `.`, `_`, `:`, `-`."""
    return _ID.fullmatch(value) is not None


def socket_of(url: str) -> str | None:
    """The unix socket that a worker's URL names: `unix:///run/x.sock`, `unix:/run/x.sock`, `http+unix://%2Frun%2Fx.sock`.

    None for every other URL, and for a path that cannot be one: not absolute, or longer than a socket's name may be.
    """
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
    elif url.startswith("http+unix://"):
        path = unquote(url.removeprefix("http+unix://"))
    else:
        return None
    return path if _SOCKET.fullmatch(path) else None


def http_base(url: str) -> str:
    """What requests to a worker's URL begin with: the URL; for a unix socket a name that nobody reads."""
    return url if socket_of(url) is None else "http://localhost"


def is_worker_url(value: str) -> bool:
    """Whether this is `http(s)://host[:port]`, without user, path, query or fragment, or a unix socket's URL."""
    if socket_of(value) is not None:
        return True
    match = _URL.fullmatch(value)
    if match is None:
        return False
    if (v6 := match["v6"]) is not None:
        try:
            IPv6Address(v6)
        except AddressValueError:
            return False
    return match["port"] is None or 0 < int(match["port"]) < 65536


def encode(report: WorkerReport) -> bytes:
    """The report as JSON. Raises `BadReport` for what `decode` would refuse, so a bad one is never published."""
    try:
        raw = orjson.dumps(report)
    except orjson.JSONEncodeError as error:
        raise BadReport("report", report.id, f"cannot be written as JSON ({error})") from error
    seen = decode(raw, report.id)
    for each in fields(WorkerReport):
        # Catches what JSON changes in silence, NaN to null for one.
        if getattr(seen, each.name) != getattr(report, each.name):
            raise BadReport(each.name, getattr(report, each.name), "does not survive being written as JSON")
    return raw


def decode(raw: bytes, expected_id: str) -> WorkerReport:
    """Read one report written under `report_key(fleet, expected_id)`.

    Checks the type and range of every field and raises `BadReport`, and nothing else, for the first one that is
    wrong. Fields it does not know are ignored: newer workers may say more.
    """
    if len(raw) > MAX_REPORT_BYTES:
        raise BadReport("report", f"{len(raw)} bytes", f"must be at most {MAX_REPORT_BYTES} bytes")
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadReport("report", raw[:_SHOWN_CHARACTERS], f"must be JSON ({error})") from error
    if not isinstance(document, dict):
        raise BadReport("report", document, "must be a JSON object")
    read = _Reader(document)
    if (named := read.identifier("id")) != expected_id:
        raise BadReport("id", named, f"must be {_shown(expected_id)}, the id in the key's name")
    return WorkerReport(
        id=named,
        incarnation=read.identifier("incarnation"),
        sequence=read.count("sequence"),
        url=read.url("url"),
        engine=read.identifier("engine"),
        pool=read.identifier("pool"),
        models=read.names("models"),
        state=read.one_of("state", STATES, "ready"),
        max_model_len=read.optional_count("max_model_len", 1, MAX_CONTEXT_TOKENS),
        max_num_seqs=read.optional_count("max_num_seqs", 1, MAX_REQUESTS),
        max_num_batched_tokens=read.optional_count("max_num_batched_tokens", 1, MAX_CONTEXT_TOKENS),
        kv_tokens=read.optional_count("kv_tokens", 1, MAX_KV_TOKENS),
        kv_usage=read.optional_share("kv_usage"),
        running=read.count("running", 0, MAX_REQUESTS),
        waiting=read.count("waiting", 0, MAX_REQUESTS),
        preemptions=read.count("preemptions", 0),
        prompt_tokens=read.count("prompt_tokens", 0),
        generation_tokens=read.count("generation_tokens", 0),
        prefix_queries=read.count("prefix_queries", 0),
        prefix_hits=read.count("prefix_hits", 0),
        version=read.line("version", ""),
        preset=read.optional_line("preset"),
        supports_priority=read.flag("supports_priority"),
        supports_continuation=read.flag("supports_continuation"),
        ttft_p50_s=read.optional_seconds("ttft_p50_s"),
        ttft_p95_s=read.optional_seconds("ttft_p95_s"),
        itl_p50_s=read.optional_seconds("itl_p50_s"),
        itl_p95_s=read.optional_seconds("itl_p95_s"),
        device_utilization=read.optional_share("device_utilization"),
        device_used_bytes=read.optional_count("device_used_bytes", 0, MAX_COUNT),
        device_bytes=read.optional_count("device_bytes", 1, MAX_COUNT),
        adapters=read.names("adapters", ()),
        driver=read.line("driver", ""),
        weights=read.line("weights", ""),
    )


def _shown(value: object) -> str:
    if isinstance(value, (str, bytes)):
        value = value[: _SHOWN_CHARACTERS + 1]  # before repr: it may be megabytes
    elif isinstance(value, (list, tuple, dict)):
        return f"{type(value).__name__} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


class _Reader:
    """Takes checked values out of an untrusted mapping. A default makes a field optional."""

    def __init__(self, document: Mapping[str, object]) -> None:
        self._document = document

    def identifier(self, field: str) -> str:
        value = self._text(field, self._document.get(field))
        if _ID.fullmatch(value) is None:
            raise BadReport(field, value, "must be 1 to 128 letters, digits, '.', '_', ':' or '-'")
        return value

    def url(self, field: str) -> str:
        value = self._text(field, self._document.get(field))
        if not is_worker_url(value):
            raise BadReport(field, value, f"must be {WORKER_URL}")
        return value

    def names(self, field: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self._document.get(field)
        if value is None and default is not None:
            return default
        if not isinstance(value, list):
            raise BadReport(field, value, "must be a list of names")
        if len(value) > MAX_MODELS:
            raise BadReport(field, value, f"must have at most {MAX_MODELS} names")
        return tuple(self._printable(field, each) for each in value)

    def one_of(self, field: str, allowed: tuple[str, ...], default: str) -> str:
        value = self._text(field, self._document.get(field, default))
        if value not in allowed:
            raise BadReport(field, value, f"must be one of {', '.join(allowed)}")
        return value

    def line(self, field: str, default: str) -> str:
        value = self._document.get(field, default)
        return "" if value == "" else self._printable(field, value)

    def optional_line(self, field: str) -> str | None:
        value = self._document.get(field)
        return None if value is None else self._printable(field, value)

    def count(self, field: str, default: int | None = None, most: int = MAX_COUNT) -> int:
        return self._whole(field, self._document.get(field, default), 0, most)

    def optional_count(self, field: str, least: int, most: int) -> int | None:
        value = self._document.get(field)
        return None if value is None else self._whole(field, value, least, most)

    def optional_share(self, field: str) -> float | None:
        return self._optional_number(field, 1)

    def optional_seconds(self, field: str) -> float | None:
        return self._optional_number(field, MAX_SECONDS)

    def _optional_number(self, field: str, most: int) -> float | None:
        value = self._document.get(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadReport(field, value, "must be a number")
        if not 0 <= value <= most:
            raise BadReport(field, value, f"must be between 0 and {most}")
        return float(value)

    def flag(self, field: str) -> bool:
        value = self._document.get(field, False)
        if not isinstance(value, bool):
            raise BadReport(field, value, "must be true or false")
        return value

    def _text(self, field: str, value: object) -> str:
        if not isinstance(value, str):
            raise BadReport(field, value, "must be text")
        return value

    def _printable(self, field: str, value: object) -> str:
        text = self._text(field, value)
        if _LINE.fullmatch(text) is None:
            raise BadReport(field, text, "must be one line of 1 to 256 printable characters")
        return text

    def _whole(self, field: str, value: object, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadReport(field, value, "must be a whole number")
        if not least <= value <= most:
            raise BadReport(field, value, f"must be between {least} and {most}")
        return value
