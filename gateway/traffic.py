"""The traffic of the last hours without its content: what `policy simulate` replays.

One line a request: when, who, which model and endpoint, how many tokens, which prefix and session by hash, where it
went and how it ended. Never text. In memory it is a ring, bounded in time, number and bytes; on disk, where the
gateway keeps anything, a file that is added to now and then, and an older one beside it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.admission import Admitted

if TYPE_CHECKING:
    from gateway.errors import ErrorAnswer
    from gateway.http.messages import Gate, RawRequest
    from gateway.local_answers import LocalAnswer
    from gateway.records import RequestRecord

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
MAX_RUNNING: Final = 100_000
MAX_MODELS: Final = 1024
FLUSH_S: Final = 5.0
MAX_FILE_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class _Begun:
    """A request that was admitted and has not ended."""

    at: float
    asked_class: str | None
    model: str
    max_output_tokens: int | None
    sequences: int
    session: str
    prefix: tuple[int, ...]


class RecordingGate:
    """The gate, with what it lets in told to the record."""

    def __init__(self, gate: Gate, traffic: Traffic) -> None:
        self._admit = gate.admit
        self._traffic = traffic

    def admit(self, raw: RawRequest, request_id: str) -> Admitted | LocalAnswer | ErrorAnswer:
        """As the gate itself."""
        answer = self._admit(raw, request_id)
        if isinstance(answer, Admitted):
            self._traffic.admitted(request_id, answer)
        return answer


class Traffic:
    """Hears of requests as they are admitted and end. `now`: seconds since the epoch."""

    def __init__(self, now: Callable[[], float] = time.time, file: Path | None = None) -> None:
        self._now = now
        self._file = file
        self._begun: OrderedDict[str, _Begun] = OrderedDict()
        self._ring: deque[tuple[float, bytes]] = deque()
        self._unsaved: deque[bytes] = deque(maxlen=MAX_REQUESTS)
        self._models: OrderedDict[str, float] = OrderedDict()
        self.bytes = 0
        self.error: str | None = None
        """Why the file does not have the last requests; None while it has."""

    def __len__(self) -> int:
        return len(self._ring)

    # -- what the data plane calls ---------------------------------------------------------------------------------

    def admitted(self, request_id: str, admitted: Admitted) -> None:
        """A request was let in."""
        request, why = admitted.request, admitted.classified.why
        at = self._now()
        asked = why.endswith(("class by header", "class by service_tier"))
        self._begun[request_id] = _Begun(
            at,
            admitted.classified.class_name if asked else None,
            admitted.model_public,
            request.max_output_tokens,
            request.sequences,
            _hashed(request.session),
            request.prefix_hashes[:MAX_PREFIX],
        )
        if len(self._begun) > MAX_RUNNING:
            self._begun.popitem(last=False)
        self._models[admitted.model_public] = at
        self._models.move_to_end(admitted.model_public)
        if len(self._models) > MAX_MODELS:
            self._models.popitem(last=False)

    def finished(self, record: RequestRecord) -> None:
        """A request ended; those that were never let in are no traffic."""
        begun = self._begun.pop(record.request_id, None)
        if begun is None:
            return
        line = orjson.dumps(
            (
                round(begun.at, 6),
                record.tenant,
                begun.asked_class,
                record.class_name,
                record.pool,
                begun.model,
                record.endpoint,
                record.stream,
                record.prompt_estimate if record.prompt_tokens is None else record.prompt_tokens,
                begun.max_output_tokens,
                begun.sequences,
                record.output_tokens,
                begun.session,
                begun.prefix,
                record.outcome,
                None if record.ttft_s is None else round(record.ttft_s, 6),
                round(record.duration_s, 6),
            )
        )
        self._keep(begun.at, line)
        if self._file is not None:
            self._unsaved.append(line)

    def _keep(self, at: float, line: bytes) -> None:
        ring = self._ring
        ring.append((at, line))
        self.bytes += len(line)
        oldest = self._now() - MAX_AGE_S
        while ring and (len(ring) > MAX_REQUESTS or self.bytes > MAX_BYTES or ring[0][0] < oldest):
            self.bytes -= len(ring.popleft()[1])

    # -- reading ---------------------------------------------------------------------------------------------------

    def asked_models(self, last_s: float = 3600.0) -> frozenset[str]:
        """Public names that were asked for lately."""
        since = self._now() - last_s
        return frozenset(model for model, at in self._models.items() if at >= since)

    def lines(self, last_s: float) -> list[bytes]:
        """The requests that arrived in the last so many seconds, in the order in which they ended."""
        since = self._now() - last_s
        return [line for at, line in self._ring if at >= since]

    # -- the file --------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Take over what an earlier run wrote."""
        if self._file is None:
            return
        found = await asyncio.to_thread(_read_all, self._file, self._now() - MAX_AGE_S)
        for at, line, model in found:
            self._keep(at, line)
            self._models[model] = max(at, self._models.get(model, 0.0))
            if len(self._models) > MAX_MODELS:
                self._models.popitem(last=False)

    async def keep_writing(self) -> None:
        """Add to the file now and then; for ever."""
        while self._file is not None:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what is not written yet."""
        if self._file is None or not self._unsaved:
            return
        lines = list(self._unsaved)
        self._unsaved.clear()
        try:
            await asyncio.to_thread(_append, self._file, lines)
            self.error = None
        except OSError as error:
            self.error = f"{self._file}: {error.strerror or error}"


def _hashed(session: str) -> str:
    """A session's name that says nothing about it."""
    return hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest() if session else ""


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
