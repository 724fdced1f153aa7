"""The traffic of the last hours without its content: what `policy simulate` replays.

One line a request: when, who, which model and endpoint, how many tokens, which prefix and session by hash, where it
went and how it ended. Never text. In memory it is a ring, bounded in time, number and bytes; on disk, where the
gateway keeps anything, a file that is added to now and then, and an older one beside it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.decimals import digits, digits_or_null, micros, micros_or_null, wall_micros

if TYPE_CHECKING:
    from gateway.records import RequestRecord
    from gateway.scheduling.model import Request

FIELDS: Final = (
    "at",  # seconds since the epoch, of arrival
    "tenant",
    "asked_class",  # by header or service tier; null: none
    "class",  # that it got
    "pool",
    "model",  # public name
    "endpoint",
    "stream",
    "prompt_tokens",  # the engine's count where it sent one, else the estimate
    "max_output_tokens",  # null: left open
    "sequences",
    "output_tokens",  # null: not known, as of a request that was refused
    "session",  # hash; empty: none
    "prefix",  # hashes of prefix blocks
    "outcome",
    "ttft_s",
    "duration_s",
)
HEADER: Final = {"headrace_traffic": 1, "fields": list(FIELDS)}

MAX_AGE_S: Final = 2 * 3600.0
MAX_REQUESTS: Final = 400_000  # two hours at 55 a second
MAX_BYTES: Final = 96 * 1024 * 1024
MAX_PREFIX: Final = 64
MAX_MODELS: Final = 1024
MAX_GONE: Final = 4096  # places of requests that are not kept any more, and one in eight of all
FLUSH_S: Final = 5.0
MAX_FILE_BYTES: Final = 64 * 1024 * 1024

ASKED: Final = ("class by header", "class by service_tier")


@dataclass(frozen=True, slots=True)
class Names:
    """What is the same in the lines of all requests that differ in nothing but numbers."""

    names: bytes
    outcome: bytes
    usual: bytes  # what is around the outcome where there is no session, no prefix and no time to the first token


def names_of(record: RequestRecord) -> Names:
    """What it is for this request."""
    asked = record.class_name if record.why.endswith(ASKED) else None
    names = record.tenant, asked, record.class_name, record.pool, record.model, record.endpoint, record.stream
    outcome = b'"%b"' % record.outcome.value.encode("ascii")
    return Names(orjson.dumps(names)[1:-1], outcome, b'"",[],%b,null' % outcome)


class Traffic:
    """Hears of models as they are asked for, and of requests as they end. `now`: seconds since the epoch."""

    def __init__(self, now: Callable[[], float] = time.time, file: Path | None = None) -> None:
        self._now = now
        self._file = file
        # Two lists, because a pair is an object more for each request, and so would be a call of a deque's method.
        self._lines: list[bytes] = []
        self._times: list[float] = []  # of arrival
        self._first = 0  # the oldest that is kept: what was before it is gone
        self._since = 0.0  # when that came in
        self._unsaved: list[bytes] = []
        self._models: dict[str, float] = {}
        self.bytes = 0
        self.error: str | None = None
        """Why the file does not have the last requests; None while it has."""

    def __len__(self) -> int:
        return len(self._lines) - self._first

    # -- what the data plane calls ---------------------------------------------------------------------------------

    def asked(self, model: str, at: float) -> None:
        """A request was let in; `model`: its public name."""
        models = self._models
        models[model] = at
        if len(models) > MAX_MODELS:
            for name in sorted(models, key=models.__getitem__)[: MAX_MODELS // 4 + 1]:
                del models[name]

    def finished(self, record: RequestRecord, request: Request, at: float, names: Names) -> None:
        """A request that was let in ended; `names`: what `names_of` says of it."""
        began = at - record.duration_s
        prompt, ttft_s, prefix = record.prompt_tokens, record.ttft_s, request.prefix_hashes
        duration = micros(record.duration_s)
        if ttft_s is None and len(prefix) == 0 and not request.session:
            around = names.usual
        else:
            around = b'"%b",%b,%b,%b' % (
                _hashed(request.session) if request.session else b"",
                orjson.dumps(prefix[:MAX_PREFIX]) if prefix else b"[]",
                names.outcome,
                micros_or_null(ttft_s),
            )
        line = b"[%b,%b,%b,%b,%b,%b,%b,%b]" % (
            wall_micros(began),
            names.names,
            digits(record.prompt_estimate if prompt is None else prompt),
            digits_or_null(record.max_output_tokens),
            digits(request.sequences),
            digits_or_null(record.output_tokens),
            around,
            duration,
        )
        self._keep(began, line, at)
        if self._file is not None:
            unsaved = self._unsaved
            unsaved.append(line)
            if len(unsaved) >= 2 * MAX_REQUESTS:
                del unsaved[:MAX_REQUESTS]

    def _keep(self, began: float, line: bytes, now: float) -> None:
        lines = self._lines
        if self._first == len(lines):
            self._since = began
        lines.append(line)
        self._times.append(began)
        self.bytes += len(line)
        oldest = now - MAX_AGE_S
        while self._first < len(lines) and (
            self._since < oldest or self.bytes > MAX_BYTES or len(lines) - self._first > MAX_REQUESTS
        ):
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        lines, first = self._lines, self._first
        self.bytes -= len(lines[first])
        lines[first] = b""
        first += 1
        if first < len(lines):
            self._since = self._times[first]
        if first >= MAX_GONE and first * 8 >= len(lines):
            del lines[:first]
            del self._times[:first]
            first = 0
        self._first = first

    # -- reading ---------------------------------------------------------------------------------------------------

    def asked_models(self, last_s: float = 3600.0) -> frozenset[str]:
        """Public names that were asked for lately."""
        since = self._now() - last_s
        return frozenset(model for model, at in self._models.items() if at >= since)

    def lines(self, last_s: float) -> list[bytes]:
        """The requests that arrived in the last so many seconds, in the order in which they ended."""
        since = self._now() - last_s
        kept = zip(self._times[self._first :], self._lines[self._first :], strict=True)
        return [line for at, line in kept if at >= since]

    # -- the file --------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Take over what an earlier run wrote."""
        if self._file is None:
            return
        found = await asyncio.to_thread(_read_all, self._file, self._now() - MAX_AGE_S)
        for at, line, model in found:
            self._keep(at, line, self._now())
            self.asked(model, max(at, self._models.get(model, 0.0)))

    async def keep_writing(self) -> None:
        """Add to the file now and then; for ever."""
        while self._file is not None:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what is not written yet."""
        if self._file is None or not self._unsaved:
            return
        lines, self._unsaved = self._unsaved[-MAX_REQUESTS:], []
        try:
            await asyncio.to_thread(_append, self._file, lines)
            self.error = None
        except OSError as error:
            self.error = f"{self._file}: {error.strerror or error}"


def _hashed(session: str) -> bytes:
    """A session's name that says nothing about it."""
    return hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest().encode("ascii")


def _append(file: Path, lines: Iterable[bytes]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if file.exists() and file.stat().st_size > MAX_FILE_BYTES:
        file.replace(older(file))
    fresh = not file.exists()
    file.touch(mode=0o600)
    with file.open("ab") as opened:
        if fresh:
            opened.write(orjson.dumps(HEADER) + b"\n")
        opened.writelines(line + b"\n" for line in lines)


def older(file: Path) -> Path:
    """Where a full file goes."""
    return file.with_name(file.name + ".1")


def _read_all(file: Path, since: float) -> list[tuple[float, bytes, str]]:
    """(arrival, line, model) of both files, lines that are none left out."""
    found: list[tuple[float, bytes, str]] = []
    for each in (older(file), file):
        try:
            with each.open("rb") as opened:
                for line in opened:
                    entry = _entry(line)
                    if entry is not None and entry[0] >= since:
                        found.append((entry[0], line.rstrip(b"\n"), entry[FIELDS.index("model")]))
        except OSError:
            continue  # there is none, or none that can be read: then there is less to replay
    return found[-MAX_REQUESTS:]


def _entry(line: bytes) -> list[Any] | None:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    sound = isinstance(entry, list) and len(entry) == len(FIELDS) and isinstance(entry[0], float | int)
    return entry if sound and isinstance(entry[FIELDS.index("model")], str) else None
