"""OpenAI's Responses and Anthropic's Messages as vLLM 0.32 speaks them: the same generation in other words. Pure.

Both are chat requests underneath. `as_chat` turns the question into one; a `Dialect` turns tokens into its events.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from workers.engines.simulator_requests import ApiError, invalid

_STOPS: Final = {"length": "max_tokens", "stop": "end_turn"}


def _named(name: str, payload: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(payload))


def responses_as_chat(data: Mapping[str, Any]) -> dict[str, Any]:
    """A Responses request as a chat request. Raises ApiError."""
    asked = data.get("input")
    if asked is None:
        raise invalid("missing", "body.input", "Field required", f"<dict of {len(data)} items>")
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    if data.get("instructions"):
        messages = [{"role": "system", "content": data["instructions"]}, *messages]
    fields = {key: data[key] for key in ("model", "temperature", "top_p", "stream", "priority", "seed") if key in data}
    extra = {key: data[key] for key in ("ignore_eos", "min_tokens", "stop", "cache_salt") if key in data}
    return {**fields, **extra, "messages": messages, "max_tokens": data.get("max_output_tokens")}


def messages_as_chat(data: Mapping[str, Any], *, counting: bool = False) -> dict[str, Any]:
    """A Messages request as a chat request. Raises ApiError."""
    if data.get("max_tokens") is None and not counting:
        raise invalid("missing", "body.max_tokens", "Field required", f"<dict of {len(data)} items>")
    fields = {key: value for key, value in data.items() if key not in ("system", "stop_sequences", "tools")}
    if data.get("system") and isinstance(data.get("messages"), list):
        fields["messages"] = [{"role": "system", "content": data["system"]}, *data["messages"]]
    if data.get("stop_sequences"):
        fields["stop"] = data["stop_sequences"]
    return fields


def anthropic_error(error: ApiError) -> bytes:
    """An error as Messages has it; fields that fail validation are still reported in OpenAI's shape."""
    if error.kind == "Bad Request" or error.detail:
        return error.body()
    return orjson.dumps({"type": "error", "error": {"type": error.kind, "message": error.message}})


class ResponsesDialect:
    """The events and the body of one Responses answer."""

    def __init__(self, request_id: str, created: int, data: Mapping[str, Any], model: str) -> None:
        self.id = f"resp_{request_id}"
        self._item_id = f"msg_{request_id}"
        self._created = created
        self._data = data
        self._model = model
        self._number = -1
        self._text: list[str] = []
        self._finish = "stop"

    def opening(self, index: int, prompt_tokens: int) -> list[bytes]:
        """What precedes the first text."""
        shell = self._response([], "in_progress", None)
        item = self._item([], "in_progress")
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return [
            self._event("response.created", {"response": shell}),
            self._event("response.in_progress", {"response": shell}),
            self._event("response.output_item.added", {"item": item, "output_index": 0}),
            self._event(
                "response.content_part.added",
                {"content_index": 0, "item_id": self._item_id, "output_index": 0, "part": part},
            ),
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
        """Text, already escaped for JSON."""
        self._finish = finish or self._finish
        if not text:
            return []
        plain = orjson.loads(b'"' + text + b'"')
        self._text.append(plain)
        place = {"item_id": self._item_id, "logprobs": [], "output_index": 0}
        return [self._event("response.output_text.delta", {"content_index": 0, "delta": plain, **place})]

    def closing(self, prompt_tokens: int, completion_tokens: int) -> list[bytes]:
        """What follows the last text."""
        text = "".join(self._text)
        place = {"content_index": 0, "item_id": self._item_id}
        part = self._part(text)
        item = self._item([part], "completed")
        response = self._ended([item], prompt_tokens, completion_tokens)
        return [
            self._event("response.output_text.done", {**place, "logprobs": [], "output_index": 0, "text": text}),
            self._event("response.content_part.done", {**place, "output_index": 0, "part": part}),
            self._event("response.output_item.done", {"item": item, "output_index": 0}),
            self._event("response.completed", {"response": response}),
        ]

    def choice(self, index: int, text: str, logprobs: Any, finish: str, stop: str | int | None) -> dict[str, Any]:
        """The generated text of an answer that does not stream."""
        self._finish = finish
        return {"text": text}

    def body(self, choices: list[dict[str, Any]], prompt_tokens: int, completion_tokens: int) -> bytes:
        """That answer."""
        item = self._item([self._part(choices[0]["text"])], "completed")
        return orjson.dumps(self._ended([item], prompt_tokens, completion_tokens))

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        self._number += 1
        return _named(name, {**fields, "sequence_number": self._number, "type": name})

    @staticmethod
    def _part(text: str) -> dict[str, Any]:
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}

    def _item(self, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
        kind = {"role": "assistant", "status": status, "type": "message", "phase": None}
        return {"id": self._item_id, "content": content, **kind}

    def _ended(self, output: list[dict[str, Any]], prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
        turns: dict[str, Any] = {"cached_tokens": 0, "cache_write_tokens": 0}
        usage = {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {**turns, "input_tokens_per_turn": [], "cached_tokens_per_turn": []},
            "output_tokens": completion_tokens,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": prompt_tokens + completion_tokens,
        }
        status = {"stop": "completed", "length": "incomplete"}.get(self._finish, "failed")
        return self._response(output, status, usage)

    def _response(self, output: list[dict[str, Any]], status: str, usage: dict[str, Any] | None) -> dict[str, Any]:
        data = self._data
        return {
            "id": self.id,
            "created_at": self._created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": data.get("instructions"),
            "metadata": data.get("metadata"),
            "model": self._model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": data.get("temperature", 1.0),
            "tool_choice": "none",
            "tools": [],
            "top_p": data.get("top_p", 1.0),
            "background": False,
            "max_output_tokens": data.get("max_output_tokens"),
            **dict.fromkeys(("max_tool_calls", "previous_response_id", "prompt", "reasoning")),
            "service_tier": "auto",
            "status": status,
            **dict.fromkeys(("text", "top_logprobs")),
            "truncation": "disabled",
            "usage": usage,
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages")),
        }


class MessagesDialect:
    """The events and the body of one Messages answer."""

    def __init__(self, request_id: str, model: str) -> None:
        self.id = f"chatcmpl-{request_id}"
        self._model = model
        self._finish = "stop"
        self._stop: str | None = None

    def opening(self, index: int, prompt_tokens: int) -> list[bytes]:
        """What precedes the first text."""
        message: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
        }
        block = {"content_block": {"type": "text", "text": ""}, "index": 0}
        return [self._event("message_start", {"message": message}), self._event("content_block_start", block)]

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
        """Text, already escaped for JSON."""
        if finish is not None:
            self._ends(finish, stop)
        if not text:
            return []
        head = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"'
        return [head + text + b'"},"index":0}\n\n']

    def closing(self, prompt_tokens: int, completion_tokens: int) -> list[bytes]:
        """What follows the last text."""
        usage = {"input_tokens": prompt_tokens, "output_tokens": completion_tokens}
        delta = {"stop_reason": self._reason(), "stop_sequence": self._stop}
        return [
            self._event("content_block_stop", {"index": 0}),
            self._event("message_delta", {"delta": delta, "usage": usage}),
            self._event("message_stop", {}),
        ]

    def choice(self, index: int, text: str, logprobs: Any, finish: str, stop: str | int | None) -> dict[str, Any]:
        """The generated text of an answer that does not stream."""
        self._ends(finish, stop)
        return {"type": "text", "text": text}

    def body(self, choices: list[dict[str, Any]], prompt_tokens: int, completion_tokens: int) -> bytes:
        """That answer."""
        usage = {"input_tokens": prompt_tokens, "output_tokens": completion_tokens}
        kind = {"id": self.id, "type": "message", "role": "assistant", "content": choices[:1], "model": self._model}
        return orjson.dumps({**kind, "stop_reason": self._reason(), "usage": usage})

    def _ends(self, finish: str, stop: str | int | None) -> None:
        self._finish = finish
        self._stop = stop if isinstance(stop, str) else None

    def _reason(self) -> str:
        return "stop_sequence" if self._stop is not None else _STOPS.get(self._finish, self._finish)

    @staticmethod
    def _event(name: str, fields: dict[str, Any]) -> bytes:
        return _named(name, {"type": name, **fields})
