"""The simulated engine's Responses and Messages, held against what vLLM 0.32 was seen to send."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from simulator_support import HELLO, Answer, ask, client, simulated

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def named_events(answer: Answer) -> list[tuple[str, Any]]:
    """Name and JSON of each event; every event is a chunk of its own."""
    found = []
    for each in answer.chunks:
        name, data = each.decode().removesuffix("\n\n").split("\n")
        found.append((name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))))
    return found


async def test_a_response_in_one_piece() -> None:
    body = {"model": "tiny", "input": "hi", "max_output_tokens": 3, "temperature": 0, "ignore_eos": True}
    async with simulated() as engine, client(engine.port) as own:
        answer = (await own.ask(RESPONSES, body, headers="x-request-id: abc\r\n")).json()
        told = (await own.ask(RESPONSES, body | {"input": HELLO, "instructions": "be brief"})).json()
    assert list(answer) == [
        *("id", "created_at", "incomplete_details", "instructions", "metadata", "model", "object", "output"),
        *("parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p", "background", "max_output_tokens"),
        *("max_tool_calls", "previous_response_id", "prompt", "reasoning", "service_tier", "status", "text"),
        *("top_logprobs", "truncation", "usage", "user", "presence_penalty", "frequency_penalty"),
        *("kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages"),
    ]
    assert (answer["id"], answer["status"]) == ("resp_abc", "incomplete")
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["content"][0]["text"].count(" ") == 3
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (10, 3)
    assert told["usage"]["input_tokens"] > 10


async def test_a_streamed_response() -> None:
    body = {"input": "hi", "max_output_tokens": 3, "temperature": 0, "ignore_eos": True, "stream": True}
    async with simulated() as engine:
        answer = await ask(engine.port, RESPONSES, body)
        whole = (await ask(engine.port, RESPONSES, body | {"stream": False})).json()
    events = named_events(answer)
    assert [name for name, _ in events] == [
        *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
        *("response.output_text.delta",) * 3,
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        "response.completed",
    ]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(name == data["type"] for name, data in events)
    text = "".join(data["delta"] for name, data in events if name.endswith("delta"))
    assert text == whole["output"][0]["content"][0]["text"] == events[-4][1]["text"]
    assert events[-1][1]["response"]["usage"] == whole["usage"]


async def test_a_message_in_one_piece_and_streamed() -> None:
    body = {
        "model": "tiny",
        "max_tokens": 3,
        "messages": HELLO,
        "temperature": 0,
        "ignore_eos": True,
        "system": "be kind",
    }
    async with simulated() as engine, client(engine.port) as own:
        whole = (await own.ask(MESSAGES, body)).json()
        streamed = await own.ask(MESSAGES, body | {"stream": True})
        count = (await own.ask(f"{MESSAGES}/count_tokens", {"messages": HELLO})).json()
        stopped = (await own.ask(MESSAGES, body | {"max_tokens": 50, "stop_sequences": ["e"]})).json()
    assert list(whole) == ["id", "type", "role", "content", "model", "stop_reason", "usage"]
    assert (whole["stop_reason"], whole["usage"]["output_tokens"]) == ("max_tokens", 3)
    events = named_events(streamed)
    assert [name for name, _ in events] == [
        *("message_start", "content_block_start"),
        *("content_block_delta",) * 3,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    text = "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert events[-2][1] == {
        "type": "message_delta",
        "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
        "usage": whole["usage"],
    }
    assert count == {"input_tokens": 10, "context_management": {"original_input_tokens": 10}}
    assert (stopped["stop_reason"], "e" in stopped["content"][0]["text"]) == ("stop_sequence", False)


@pytest.mark.parametrize(
    ("path", "body", "status", "wanted"),
    [
        (
            RESPONSES,
            {"model": "tiny"},
            400,
            {
                "error": {
                    "message": "1 validation error:\n  {'type': 'missing', 'loc': 'body.input', 'msg': 'Field "
                    "required', 'input': '<dict of 1 items>'}",
                    "type": "Bad Request",
                    "param": "body.input",
                    "code": 400,
                }
            },
        ),
        (
            MESSAGES,
            {"model": "nope", "max_tokens": 3, "messages": HELLO},
            404,
            {
                "type": "error",
                "error": {
                    "type": "NotFoundError",
                    "message": "The model `nope` does not exist. Valid aliases: tiny.",
                },
            },
        ),
        (
            MESSAGES,
            {"model": "tiny", "messages": HELLO},
            400,
            {
                "error": {
                    "message": "1 validation error:\n  {'type': 'missing', 'loc': 'body.max_tokens', 'msg': 'Field "
                    "required', 'input': '<dict of 2 items>'}",
                    "type": "Bad Request",
                    "param": "body.max_tokens",
                    "code": 400,
                }
            },
        ),
    ],
)
async def test_errors(path: str, body: Any, status: int, wanted: Any) -> None:
    async with simulated() as engine:
        answer = await ask(engine.port, path, body)
    assert (answer.status, answer.json()) == (status, wanted)


async def test_the_official_client_reads_responses() -> None:
    openai = pytest.importorskip("openai")
    async with (
        simulated() as engine,
        openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="x", max_retries=0) as api,
    ):
        whole = await api.responses.create(model="tiny", input="hi", max_output_tokens=4)
        assert whole.output_text.count(" ") == 4
        stream = await api.responses.create(model="tiny", input="hi", max_output_tokens=4, stream=True)
        assert [event.type async for event in stream][-1] == "response.completed"
