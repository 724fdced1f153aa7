"""Requests in the simulated engine: from a judged request to sequences, and from steps to bytes on the wire.

A job is one HTTP request; it has a choice for each sequence it generates. Nothing here keeps text: a choice knows how
many of its tokens have been sent and makes the next ones when they are due.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import orjson

from workers.engines.simulator_answers import DONE, Dialect, chat_logprobs, completion_logprobs, error_event
from workers.engines.simulator_http import Exchange
from workers.engines.simulator_requests import ApiError, Generation
from workers.engines.simulator_text import Babble, fingerprint, prefix_hashes
from workers.engines.timing import EngineCore, Sequence

OUTPUT_SIGMA: Final = 0.8  # of the logarithm of output lengths


@dataclass(slots=True, eq=False)
class Choice:
    """One sequence as the client sees it."""

    job: Job
    index: int
    seq: Sequence
    babble: Babble
    finish: str  # what the finish reason will be
    stop: str | int | None = None
    keep_chars: int | None = None  # text is cut there by a stop string
    prompt: str = ""  # to be echoed
    sent: int = 0  # tokens
    chars: int = 0  # sent, where keep_chars matters
    opened: bool = False  # its first event is out
    ended: bool = False

    def take(self, made: int) -> str:
        """Text of the tokens up to `made` that has not been sent, cut where a stop string says."""
        text = self.babble.text(self.sent, made)
        if self.keep_chars is not None:
            text = text[: max(0, self.keep_chars - self.chars)]
            self.chars += len(text)
        return text

    def take_json(self, made: int) -> bytes:
        """The same, escaped."""
        if self.keep_chars is None:
            return self.babble.text_json(self.sent, made)
        return orjson.dumps(self.take(made))[1:-1]


def draw_length(rng: Random, mean: float) -> int:
    """An output length with the given mean; lognormal, as recorded traffic is. 0: no end."""
    if mean <= 0:
        return 1 << 40
    return max(1, round(rng.lognormvariate(math.log(mean) - OUTPUT_SIGMA**2 / 2, OUTPUT_SIGMA)))


class Job:
    """A chat or completion request on its way. `on_end` is called once, when nothing more will be sent or made."""

    def __init__(
        self,
        exchange: Exchange,
        request: Generation,
        dialect: Dialect,
        core: EngineCore,
        on_end: Callable[[Job], None],
        response_headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self.exchange = exchange
        self.request = request
        self.dialect = dialect
        self.core = core
        self.choices: list[Choice] = []
        self.cut_after: int | None = None  # fault: break off after so many tokens
        self.error_after: tuple[int, ApiError] | None = None  # fault: an error inside the stream
        self._on_end = on_end
        self._response_headers = response_headers
        self._left = 0
        self.done = False

    def add_choices(self, seed: int, mean_output: float, block_tokens: int) -> list[Sequence]:
        """Make the sequences; the same request with the same seed makes the same ones."""
        request = self.request
        sequences: list[Sequence] = []
        for number, prompt in enumerate(request.prompts):
            hashes = prefix_hashes(prompt, block_tokens, request.cache_salt)
            mark = fingerprint(prompt)
            for copy in range(request.n):
                own = (seed * 1_000_003 + mark * 31 + (request.seed or 0) * 7919 + copy) & 0xFFFFFFFFFFFF
                babble = Babble(own)
                limit = request.max_tokens[number]
                wanted = limit if request.ignore_eos else max(request.min_tokens, draw_length(Random(own), mean_output))
                output, finish = (limit, "length") if wanted >= limit else (wanted, "stop")
                stop: str | int | None = None
                keep: int | None = None
                if request.stop or request.stop_token_ids:
                    found = babble.find_stop(output, request.stop, request.stop_token_ids)
                    if found is not None and found[0] > request.min_tokens:
                        output, keep, stop = found
                        finish = "stop"
                        if request.include_stop:
                            keep = None
                seq = Sequence(
                    f"{self.dialect.id}-{number}-{copy}", len(prompt), output, priority=request.priority, hashes=hashes
                )
                choice = Choice(self, len(self.choices), seq, babble, finish, stop, keep)
                if request.echo:
                    choice.prompt = "".join(prompt)
                seq.owner = choice
                self.choices.append(choice)
                sequences.append(seq)
        self._left = len(self.choices)
        return sequences

    def begin(self) -> None:
        """Send what is sent before the first token: for a stream the head, at once, as vLLM does."""
        self.exchange.on_gone = self._gone
        if self.request.stream:
            self.exchange.on_writable = self.flush
            self.exchange.start_stream(self._response_headers)

    def flush(self) -> None:
        """Send whatever has been made and not sent, after the client has caught up."""
        for choice in self.choices:
            if not self.done:
                self.advance(choice)

    def advance(self, choice: Choice) -> None:
        """The engine has made tokens for a choice, or has finished it."""
        if self.done or choice.ended:
            return
        made = self.core.produced(choice.seq)
        finished = choice.seq.finished_at is not None
        if self._break_off(made) or (self.request.stream and not self.exchange.writable):
            return
        if self.request.stream and (made > choice.sent or finished):
            self.exchange.send(self._events(choice, made, choice.finish if finished else None))
        if finished:
            choice.ended = True
            self._left -= 1
            if self._left == 0:
                self._complete()

    def abort(self) -> None:
        """The engine shuts down: what was made is sent, with the finish reason vLLM gives."""
        for choice in self.choices:
            if self.done or choice.ended:
                continue
            made = self.core.produced(choice.seq)
            choice.finish, choice.stop = "abort", None
            if self.request.stream:
                self.exchange.send(self._events(choice, made, "abort"))
            choice.ended = True
            self._left -= 1
        if not self.done:
            self._complete()

    def fail(self, error: ApiError) -> None:
        """End with an error: as the answer, or as an event of the stream that has begun."""
        if self.exchange.streaming:
            self.exchange.finish_stream([error_event(error.payload()), DONE])
        else:
            self.exchange.respond(error.status, error.body(), headers=self._response_headers)
        self._end()

    def unfinished(self) -> Iterable[Sequence]:
        """Sequences the engine may still hold."""
        return [choice.seq for choice in self.choices if choice.seq.finished_at is None]

    def _events(self, choice: Choice, made: int, finish: str | None) -> list[bytes]:
        events: list[bytes] = []
        request, prompt_tokens = self.request, choice.seq.prompt_tokens
        text = b""
        if not choice.opened:
            choice.opened = True
            events += self.dialect.opening(choice.index, prompt_tokens)
            text = orjson.dumps(choice.prompt)[1:-1]
        logprobs = b"null"
        if request.logprobs is not None and made > choice.sent:
            logprobs = orjson.dumps(self._logprobs(choice, choice.sent, made))
        text += choice.take_json(made)
        stop = choice.stop if finish is not None else None
        events += self.dialect.chunk(choice.index, text, logprobs, prompt_tokens, made, finish, stop)
        choice.sent = made
        return events

    def _logprobs(self, choice: Choice, first: int, last: int) -> dict[str, Any]:
        top = self.request.logprobs or 0
        build = chat_logprobs if self.request.chat else completion_logprobs
        return build(choice.babble, first, last, top)

    def _break_off(self, made: int) -> bool:
        """Carry out a fault that waits for its token; True if the job has ended by it."""
        if self.cut_after is not None and made >= self.cut_after:
            self.exchange.cut(reset=True)
            self._end()
        elif self.error_after is not None and made >= self.error_after[0]:
            self.fail(self.error_after[1])
        return self.done

    def _complete(self) -> None:
        prompts = sum(len(prompt) for prompt in self.request.prompts)
        tokens = sum(self.core.produced(choice.seq) for choice in self.choices)
        if self.request.stream:
            self.exchange.finish_stream(self.dialect.closing(prompts, tokens))
        else:
            choices = [self._whole(choice) for choice in self.choices]
            self.exchange.respond(200, self.dialect.body(choices, prompts, tokens), headers=self._response_headers)
        self._end()

    def _whole(self, choice: Choice) -> dict[str, Any]:
        made = self.core.produced(choice.seq)
        logprobs = None if self.request.logprobs is None else self._logprobs(choice, 0, made)
        text = choice.prompt + choice.take(made)
        return self.dialect.choice(choice.index, text, logprobs, choice.finish, choice.stop)

    def _gone(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self.done:
            self.done = True
            self._on_end(self)
