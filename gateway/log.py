"""JSON lines: one for each finished request, one for each change of state. Never a prompt, an answer or a key.

Writing never waits: lines go to a bounded buffer that a thread writes out, and what does not fit is counted and
dropped, because a full disk or a stopped reader of our standard error must not stop the traffic.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from gateway.decimals import digits, digits_or_null, micros, micros_or_null, millis

if TYPE_CHECKING:
    from gateway.records import RequestRecord

MAX_BUFFERED_BYTES: Final = 4 << 20
MAX_LINE_BYTES: Final = 8192
MAX_TEXT_CHARS: Final = 256  # of one value in a line that is too long
BATCH_S: Final = 0.05  # one write for what comes within this time; also how late a line is at most
CLOSE_S: Final = 1.0

Value = str | int | float | bool | None | list[str]


def line_of(fields: Mapping[str, Value]) -> bytes:
    """One JSON object on one printable line, whatever characters the values hold. NaN and infinities become null."""
    try:
        line = orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
        if len(line) > MAX_LINE_BYTES:
            line = orjson.dumps({key: _cut(value) for key, value in fields.items()}, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # a lone surrogate, an integer beyond 64 bits
        safe = {key: _forced(value) for key, value in fields.items()}
        line = orjson.dumps(safe, option=orjson.OPT_APPEND_NEWLINE)
    # JSON has escaped ASCII's control characters. The rest is rare, so looking for it must be cheap.
    if line.isascii() and b"\x7f" not in line:
        return line
    return _printable(line)


def _cut(value: Value) -> Value:
    if isinstance(value, str) and len(value) > MAX_TEXT_CHARS:
        return value[: MAX_TEXT_CHARS - 3] + "..."
    return value


def _forced(value: Value) -> Value:
    if value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    return str(value)[:MAX_TEXT_CHARS].encode(errors="backslashreplace").decode()


def _printable(line: bytes) -> bytes:
    """The same JSON with every character escaped that splits lines, drives terminals or cannot be seen.

    They are inside strings, the only place where JSON has other than ASCII, and there an escape means the same.
    """
    text = line[:-1].decode()
    if text.isprintable():
        return line
    return "".join(c if c.isprintable() else _escape(c) for c in text).encode() + b"\n"


def _escape(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def request_fields(record: RequestRecord, at: float) -> dict[str, Value]:
    """What the log says about a finished request; `at` is wall-clock seconds since the epoch."""
    return {
        "time": round(at, 3),
        "event": "request",
        "request_id": record.request_id,
        "tenant": record.tenant,
        "key_id": record.key_id,
        "class": record.class_name,
        "pool": record.pool,
        "worker": record.worker,
        "endpoint": record.endpoint,
        "model": record.model,
        "stream": record.stream,
        "status": record.status,
        "outcome": record.outcome.value,
        "reason": record.reason,
        "prompt_estimate": record.prompt_estimate,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "queue_s": round(record.queue_s, 6),
        "ttft_s": None if record.ttft_s is None else round(record.ttft_s, 6),
        "duration_s": round(record.duration_s, 6),
        "attempts": record.attempts,
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
        "revision": record.revision,
    }


_SAID = (
    "tenant", "key_id", "class", "pool", "worker", "endpoint", "model", "stream", "status", "outcome", "reason",
    "revision",
)  # fmt: skip
_SAID_BYTES: Final = 1024


def said_of(record: RequestRecord) -> bytes | None:
    """The middle of a request's line, from behind its id on, which is the same for all that differ in nothing but
    numbers and their ids; None where it is too long for that."""
    fields = request_fields(record, 0.0)
    said = line_of({name: fields[name] for name in _SAID})[1:-2]
    return b'",%b,"prompt_estimate":' % said if len(said) <= _SAID_BYTES else None


_NOT_WAITED: Final = b',"queue_s":0.000000,"ttft_s":null,"duration_s":'
_TRIED_ONCE: Final = b',"attempts":1,"bytes_in":'


def request_line(record: RequestRecord, at: float, said: bytes | None = None) -> bytes:
    """The line about a finished request: `request_fields` as JSON, with `said_of` in a fraction of the time."""
    if said is None:
        return line_of(request_fields(record, at))
    queue_s, ttft_s, attempts = record.queue_s, record.ttft_s, record.attempts
    # Most did not wait, were tried once, and have no first token because they are no streams.
    waited, tried = _NOT_WAITED, _TRIED_ONCE
    if queue_s != 0.0 or ttft_s is not None:
        waited = b',"queue_s":%b,"ttft_s":%b,"duration_s":' % (micros(queue_s), micros_or_null(ttft_s))
    if attempts != 1:
        tried = b',"attempts":%b,"bytes_in":' % digits(attempts)
    return (
        b'{"time":%b,"event":"request","request_id":"%b%b%b,"prompt_tokens":%b,"output_tokens":%b%b%b%b%b,"bytes_out":%b}\n'
    ) % (
        millis(at),
        record.request_id.encode(),  # of a closed set of characters (`headers.request_id_of`)
        said,
        digits(record.prompt_estimate),
        digits_or_null(record.prompt_tokens),
        digits_or_null(record.output_tokens),
        waited,
        micros(record.duration_s),
        tried,
        digits(record.bytes_in),
        digits(record.bytes_out),
    )


class Writer:
    """Writes lines to one file descriptor from a thread. `write` is cheap and never waits; `close` waits a little.

    One thread: the descriptor may be a pipe whose reader has stopped, and a pipe shared with others must not be
    switched to non-blocking for all of them.
    """

    def __init__(self, fd: int, *, owned: bool, max_bytes: int = MAX_BUFFERED_BYTES) -> None:
        self._fd = fd
        self._owned = owned
        self._max_bytes = max_bytes
        self._lines: list[bytes] = []
        self._closing = False
        self._awake = False  # the thread looks at the lines again without being told
        self._wake = threading.Event()
        self._writing: threading.Thread | None = None
        # Each counter has one thread that writes it, so none needs a lock.
        self._bytes_in = self._bytes_out = 0
        self._refused = self._failed = 0

    @property
    def dropped(self) -> int:
        """Lines lost: the buffer was full or the file could not be written."""
        return self._refused + self._failed

    def write(self, line: bytes) -> None:
        """Take a line, or count it as dropped when there is no room."""
        if self._closing or self._bytes_in - self._bytes_out + len(line) > self._max_bytes:
            self._refused += 1
            return
        self._bytes_in += len(line)
        self._lines.append(line)
        if not self._awake:
            self._awake = True
            self._wake.set()
            if self._writing is None:
                # A daemon: a reader that never reads again must not keep the process from ending.
                self._writing = threading.Thread(target=self._run, name="log-writer", daemon=True)
                self._writing.start()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what is buffered, at most `timeout_s` long, and stop. Harmless when called again."""
        self._closing = True
        self._wake.set()
        if self._writing is not None:
            self._writing.join(timeout_s)
            if self._writing.is_alive():
                return  # stuck in a write: the descriptor must not be closed under it
            self._writing = None
        if self._owned:
            self._owned = False
            os.close(self._fd)

    def _run(self) -> None:
        closing = False
        lines = self._lines
        while not closing:
            if not lines:
                # Said before looking once more: whoever adds a line after that sets the event.
                self._awake = False
                if not lines and not self._closing:
                    self._wake.wait()
                self._wake.clear()
            if not self._closing:
                time.sleep(BATCH_S)  # the writer's own thread: more lines a write, and awake once in this time
            closing = self._closing
            batch = lines[:]
            del lines[: len(batch)]  # one step of the interpreter each, and the other thread only adds at the end
            self._write_all(b"".join(batch))

    def _write_all(self, batch: bytes) -> None:
        view = memoryview(batch)
        try:
            while view:
                written = os.write(self._fd, view)
                view = view[written:]
        except OSError:
            # There is nowhere left to say so; the counter shows in /metrics.
            self._failed += batch.count(b"\n", len(batch) - len(view))
        finally:
            self._bytes_out += len(batch)


class Log:
    """The gateway's two logs: finished requests and events."""

    def __init__(self, requests: Writer | None, events: Writer | None) -> None:
        self._requests = requests
        self._events = events

    @property
    def dropped(self) -> int:
        """Lines lost in both logs."""
        return sum(writer.dropped for writer in {self._requests, self._events} if writer is not None)

    def request(self, record: RequestRecord, at: float, said: bytes | None = None) -> None:
        """One line for a request that ended at `at`, wall-clock seconds; `said`: what `said_of` says of it."""
        if self._requests is not None:
            self._requests.write(request_line(record, at, said))

    def event(self, name: str, **fields: Value) -> None:
        """One line for something that changed: a worker's state, Redis, the policy, start and stop."""
        if self._events is not None:
            self._events.write(line_of({"time": round(time.time(), 3), "event": name, **fields}))

    def close(self) -> None:
        """Write out what is buffered."""
        for writer in {self._requests, self._events}:
            if writer is not None:
                writer.close()


def open_log(requests: str, events: str) -> Log:
    """A log for two destinations: `-` standard error, `none`, or a file to append to. Raises `OSError`."""
    writers: dict[str, Writer | None] = {"none": None}
    for name in (requests, events):
        if name not in writers:
            writers[name] = Writer(2, owned=False) if name == "-" else Writer(_open(Path(name)), owned=True)
    return Log(writers[requests], writers[events])


def _open(path: Path) -> int:
    return os.open(path.expanduser(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
