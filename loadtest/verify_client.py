"""What a client sees of requests that `headrace verify` sends: each ends in exactly one fate, and what came is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, Final

import aiohttp
import orjson

from loadtest.prompt_text import Book
from loadtest.traces import TraceRequest

MODEL: Final = "tiny"
CHAT: Final = "/v1/chat/completions"
ANSWER_S: Final = 30.0  # an answer that is not at its end by then is none
MAX_BODY_BYTES: Final = 4 << 20  # of an answer: more than any here has


class Fate(StrEnum):
    """What became of a request, as its client saw it."""

    ANSWERED = "answered"  # the whole answer came
    REFUSED = "refused"  # an error with a status, and nothing of an answer before
    TOLD = "told"  # a stream that broke, said so in an error event, and had no [DONE]
    BROKEN = "broken"  # ended half-way without a word
    LEFT = "left"  # the client left, as it was told to
    SILENT = "silent"  # no end within `ANSWER_S`


LOST: Final = frozenset({Fate.BROKEN, Fate.SILENT})


@dataclass(slots=True)
class Told:
    """One request, and what came of it. Times are seconds on the monotonic clock."""

    sent_s: float
    fate: Fate = Fate.SILENT
    status: int = 0  # 0: no answer came
    code: str = ""  # of an error
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""
    first_s: float | None = None  # the first byte of the body of a good answer
    ended_s: float = 0.0
    left_s: float | None = None

    @property
    def pool(self) -> str:
        """The policy's pool that it was given."""
        return self.headers.get("x-headrace-pool", "")

    @property
    def worker(self) -> str:
        """Who answered."""
        return self.headers.get("x-headrace-worker", "")

    @property
    def revision(self) -> int:
        """The policy's revision that it was decided by; 0: it does not say."""
        said = self.headers.get("x-headrace-revision", "")
        return int(said) if said.isdecimal() else 0

    @property
    def attempts(self) -> int:
        """How many workers were tried for it; 0: it does not say."""
        said = self.headers.get("x-headrace-attempts", "")
        return int(said) if said.isdecimal() else 0


def judge_body(told: Told, *, whole: bool, streamed: bool) -> Fate:
    """The fate of an answer by its bytes. `whole`: its framing came to its end."""
    if told.status >= 400:
        return Fate.REFUSED if whole else Fate.BROKEN
    if not streamed:
        return Fate.ANSWERED if whole and told.body.endswith(b"}") else Fate.BROKEN
    done = b"\ndata: [DONE]" in told.body or told.body.startswith(b"data: [DONE]")
    error = error_in(told.body)
    if error is not None and not done:
        told.code = str(error.get("code") or "")
        return Fate.TOLD
    return Fate.ANSWERED if whole and done and error is None else Fate.BROKEN


def error_in(body: bytes) -> dict[str, Any] | None:
    """The error event that a stream has; None: it has none."""
    for line in body.split(b"\n"):
        if line.startswith(b"data:") and b'"error"' in line:
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(line[5:])
                if isinstance(value, dict) and isinstance(value.get("error"), dict):
                    error: dict[str, Any] = value["error"]
                    return error
    return None


class Writer:
    """Makes requests: each prompt is another one, so that no cache serves two."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._book = Book(rng)
        self._salt = f"{rng.getrandbits(32):08x}"
        self._made = 0

    def chat(self, prompt_tokens: int = 40, output_tokens: int = 16, *, stream: bool = True) -> dict[str, Any]:
        """A chat request; its answer has exactly `output_tokens`."""
        self._made += 1
        prompt = self._book.prompt(TraceRequest(0.0, prompt_tokens, output_tokens), self._made, self._salt)
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": stream,
        }


class Caller:
    """Sends requests to one URL. `began` hears of each request whose answer begins."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str = "") -> None:
        self.session = session
        self.url = url
        self._key = {"Authorization": f"Bearer {key}"} if key else {}

    async def ask(
        self,
        body: Mapping[str, Any] | bytes,
        headers: Mapping[str, str] | None = None,
        *,
        path: str = CHAT,
        method: str = "POST",
        leave: asyncio.Event | None = None,
        leave_at_first: bool = False,
        began: Callable[[Told], None] = lambda _: None,
        answer_s: float = ANSWER_S,
    ) -> Told:
        """Send one and read it to its end; never raises for what comes back.

        `leave_at_first`: leave as soon as the answer begins; `leave`: when that is set.
        """
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        streamed = isinstance(body, Mapping) and bool(body.get("stream"))
        told = Told(time.monotonic())
        fields = {"Content-Type": "application/json", **self._key, **(headers or {})}

        async def read() -> bool:
            """Whether the answer's framing came to its end."""
            async with self.session.request(
                method, self.url + path, data=raw or None, headers=fields, allow_redirects=False
            ) as response:
                told.status = response.status
                told.headers = {name.lower(): value for name, value in response.headers.items()}
                async for data in response.content.iter_any():
                    if told.first_s is None and told.status < 400:
                        told.first_s = time.monotonic()
                        began(told)
                    told.body += data
                    if len(told.body) > MAX_BODY_BYTES:
                        raise ValueError("an answer without an end")
                    if leave_at_first:
                        told.left_s = time.monotonic()
                        response.close()
                        return False
            return True

        whole = late = False
        reading = asyncio.ensure_future(read())
        leaving = None if leave is None else asyncio.ensure_future(leave.wait())
        try:
            await asyncio.wait(
                {reading} if leaving is None else {reading, leaving},
                timeout=answer_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if reading.done():
                whole = reading.result()
            elif leaving is not None and leaving.done():
                told.left_s = time.monotonic()
            else:
                late = True
        except (aiohttp.ClientError, OSError, ValueError) as error:
            told.code = type(error).__name__
        finally:
            running = [task for task in (reading, leaving) if task is not None and not task.done()]
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)  # not each by itself: our own cancellation must not pass for theirs
            for task in running:
                if not task.cancelled():
                    task.exception()
        told.ended_s = time.monotonic()
        if told.left_s is not None:
            told.fate = Fate.LEFT
        elif late:
            told.fate = Fate.SILENT
        elif told.status == 0:
            told.fate = Fate.BROKEN
        else:
            told.fate = judge_body(told, whole=whole, streamed=streamed)
        if told.fate is Fate.REFUSED:
            told.code = code_of(told.body)
        return told

    async def many(
        self, bodies: Sequence[Mapping[str, Any]], *, at_once: int = 10_000, headers: Mapping[str, str] | None = None
    ) -> list[Told]:
        """Send all of these, so many at once; what came of them, in the same order."""
        gate = asyncio.Semaphore(at_once)

        async def one(body: Mapping[str, Any]) -> Told:
            async with gate:
                return await self.ask(body, headers)

        return list(await asyncio.gather(*map(one, bodies)))


def code_of(body: bytes) -> str:
    """The code of an error body in OpenAI's shape; empty where it has none."""
    with suppress(orjson.JSONDecodeError, KeyError, TypeError):
        return str(orjson.loads(body)["error"]["code"])
    return ""
