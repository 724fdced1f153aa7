"""The bodies and events of the simulated engine's answers, field for field as vLLM 0.32 writes them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson

from workers.engines.simulator_text import WORDS, Babble

FINGERPRINT: Final = "vllm-0.32.0-simulated"
DONE: Final = b"data: [DONE]\n\n"


def event(payload: bytes) -> bytes:
    """A payload as one server-sent event."""
    return b"data: " + payload + b"\n\n"


def error_event(payload: dict[str, object]) -> bytes:
    """An error inside a stream; vLLM writes these with spaces, unlike everything else."""
    text = orjson.dumps(payload).decode()
    spaced = text.replace('":', '": ').replace(',"', ', "')
    return event(spaced.encode())


class Dialect(Protocol):
    """How one answer is put into words."""

    @property
    def id(self) -> str:
        """The answer's id."""

    def opening(self, index: int, prompt_tokens: int) -> list[bytes]:
        """Events that precede a choice's first text."""

    def chunk(
        self,
        index: int,
        text: bytes,
        logprobs: bytes,
        prompt_tokens: int,
        completion_tokens: int,
        finish: str | None = None,
        stop: str | int | None = None,
    ) -> list[bytes]:
        """Events with text, already escaped for JSON; the choice's last ones carry `finish`."""

    def closing(self, prompt_tokens: int, completion_tokens: int) -> list[bytes]:
        """Events that end the stream."""

    def choice(self, index: int, text: str, logprobs: Any, finish: str, stop: str | int | None) -> dict[str, Any]:
        """One choice of an answer in one piece."""

    def body(self, choices: list[dict[str, Any]], prompt_tokens: int, completion_tokens: int) -> bytes:
        """That answer."""


@dataclass(frozen=True, slots=True)
class Completions:
    """Chat and text completions."""

    id: str
    created: int
    model: str
    chat: bool
    continuous_usage: bool
    include_usage: bool

    def _start(self, index: int) -> bytes:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        opening = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return orjson.dumps(opening)[:-1] + b',"choices":[{"index":%d,' % index

    def opening(self, index: int, prompt_tokens: int) -> list[bytes]:
        """The role event of a chat choice."""
        if not self.chat:
            return []
        return [
            event(
                self._start(index)
                + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
                + self._usage(prompt_tokens, 0)
                + b',"prompt_token_ids":null,"prompt_text":null}'
            )
        ]

    def chunk(
        self,
        index: int,
        text: bytes,
        logprobs: bytes,
        prompt_tokens: int,
        completion_tokens: int,
        finish: str | None = None,
        stop: str | int | None = None,
    ) -> list[bytes]:
        """An event with text; where no usage event follows, the last one of a choice carries the fingerprint."""
        reason = b"null" if finish is None else b'"%b"' % finish.encode()
        if self.chat:
            piece = b'"delta":{"content":"%b"},"logprobs":%b,"finish_reason":%b' % (text, logprobs, reason)
            piece += b"" if finish is None else b',"stop_reason":' + orjson.dumps(stop)
            piece += b',"token_ids":null}]'
        else:
            piece = b'"text":"%b","logprobs":%b,"finish_reason":%b,"stop_reason":%b' % (
                text,
                logprobs,
                reason,
                orjson.dumps(stop),
            )
            piece += b',"prompt_token_ids":null,"token_ids":null}]'
        tail = b""
        if finish is not None and not self.include_usage:
            tail = b',"system_fingerprint":"%b"' % FINGERPRINT.encode()
        return [event(self._start(index) + piece + self._usage(prompt_tokens, completion_tokens) + tail + b"}")]

    def closing(self, prompt_tokens: int, completion_tokens: int) -> list[bytes]:
        """The usage event, where it was asked for, and the end."""
        if not self.include_usage:
            return [DONE]
        usage: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
                "completion_tokens": completion_tokens,
            },
            "system_fingerprint": FINGERPRINT,
        }
        return [event(orjson.dumps(usage)), DONE]

    def body(self, choices: list[dict[str, Any]], prompt_tokens: int, completion_tokens: int) -> bytes:
        """The whole answer of a request that does not stream."""
        answer: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {
                "prompt_tokens": prompt_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
                "completion_tokens": completion_tokens,
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
            },
        }
        if self.chat:
            answer |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        answer |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        return orjson.dumps(answer)

    def choice(self, index: int, text: str, logprobs: Any, finish: str, stop: str | int | None) -> dict[str, Any]:
        """One choice of such an answer."""
        ending = {"logprobs": logprobs, "finish_reason": finish, "stop_reason": stop, "token_ids": None}
        if not self.chat:
            extra = {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
            return {"index": index, "text": text, **ending, **extra}
        message = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return {"index": index, "message": message, **ending, "routed_experts": None}

    def _usage(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        if not self.continuous_usage:
            return b""
        return (
            b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}'
        ) % (prompt_tokens, prompt_tokens + completion_tokens, completion_tokens)


def _logprob(word: int, rank: int) -> float:
    return -(0.05 + (word * 7 + rank * 13) % 97 / 40 + rank)


def _alternatives(word: int, count: int) -> list[int]:
    """The drawn word and `count - 1` others, likeliest first."""
    return [(word + rank * 31) % len(WORDS) for rank in range(count)]


def chat_logprobs(babble: Babble, first: int, last: int, top: int) -> dict[str, Any]:
    """Log probabilities of tokens `first` … `last - 1`, as chat has them; invented, but always the same."""
    babble.text(0, last)

    def entry(word: int, rank: int) -> dict[str, Any]:
        token = WORDS[word]
        return {"token": token, "logprob": _logprob(word, rank), "bytes": list(token.encode())}

    content = [
        {
            **entry(word, 0),
            "top_logprobs": [entry(other, rank) for rank, other in enumerate(_alternatives(word, top))],
        }
        for word in babble.words[first:last]
    ]
    return {"content": content}


def completion_logprobs(babble: Babble, first: int, last: int, top: int) -> dict[str, Any]:
    """The same as completions have them."""
    babble.text(0, last)
    offset = len(babble.text(0, first))
    words = babble.words[first:last]
    offsets: list[int] = []
    for word in words:
        offsets.append(offset)
        offset += len(WORDS[word])
    return {
        "text_offset": offsets,
        "token_logprobs": [_logprob(word, 0) for word in words],
        "tokens": [WORDS[word] for word in words],
        "top_logprobs": [
            {WORDS[other]: _logprob(other, rank) for rank, other in enumerate(_alternatives(word, max(1, top)))}
            for word in words
        ],
    }
