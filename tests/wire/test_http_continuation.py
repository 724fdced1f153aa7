"""Streams that go on at another worker: what the client sees, what the worker is asked, and when it cannot be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from data_plane import Answer, Plane, plane, request
from fault_server import (
    DONE,
    STREAM_HEAD,
    Call,
    FaultServer,
    Script,
    answers,
    chunked,
    closes,
    hangs,
    http,
    ok,
    streams,
)

from gateway.http.continuation import SEAM, continued_body
from gateway.http.whole_events import HOLD_EVENT_BYTES
from gateway.records import Terminal
from gateway.scheduling.model import OutcomeKind
from policies.endpoints import Endpoint

ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": True}


def chat(number: int, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """A chat event of worker `number`."""
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    value = {"id": f"chatcmpl-{number}", "created": 100 + number, "choices": choices, **more}
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def role(number: int) -> bytes:
    return chat(number, {"role": "assistant", "content": ""})


def usage(number: int, prompt: int, output: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return chat(number, {}).replace(b'[{"index":0,"delta":{},"finish_reason":null}]', b"[]")[:-3] + (
        b',"usage":' + json.dumps(counts, separators=(",", ":")).encode() + b"}\n\n"
    )


FIRST = [role(1), chat(1, {"content": "Grüße, "}), chat(1, {"content": 'he said "'})]
SECOND = [role(2), chat(2, {"content": "x"}), chat(2, {"content": ""}, "stop"), usage(2, 14, 2), DONE]
SEEN = b"".join(FIRST) + SEAM
REST = chat(1, {"content": "x"}) + chat(1, {"content": ""}, "stop")


def dies(events: list[bytes], how: Callable[[Call], None] = Call.reset) -> Script:
    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD + b"".join(map(chunked, events)))
        await call.gate.wait()
        how(call)

    return script


async def ask(
    p: Plane, first: FaultServer, seen: bytes, body: object = ASKED, path: str = "/v1/chat/completions"
) -> Answer:
    """Ask, let the first worker die when the client has read `seen`, and read on."""
    p.gate.continue_streams = True
    async with p.client() as client:
        await client.send(request(json.dumps(body).encode(), path))
        status, fields = await client.head()
        assert status == 200
        assert (b"x-headrace-worker", b"w0") in fields
        answer = Answer(status, fields, b"", True)
        chunks = client.chunks()
        while len(answer.body) < len(seen):
            answer.body += await anext(chunks)
        (await first.call()).gate.set()
        try:
            async for piece in chunks:
                answer.body += piece
        except (EOFError, ConnectionError):
            answer.complete = False
        return answer


@pytest.mark.parametrize("how", [Call.reset, Call.close, Call.half_close])
async def test_another_worker_goes_on_from_the_text_so_far(how: Callable[[Call], None]):
    """`id` and `created` stay, the second role is left out, the counts are summed, the comment marks the seam."""
    async with (
        FaultServer(dies(FIRST, how)) as first,
        FaultServer(streams(SECOND)) as second,
        plane(first, second) as p,
    ):
        answer = await ask(p, first, b"".join(FIRST))
        assert answer.complete
        assert answer.body == SEEN + REST + usage(1, 12, 4) + DONE
        (record,) = await p.notes.until(1)
        assert (record.outcome, record.reason, record.attempts) == (Terminal.OK, "continued", 2)
        assert (record.prompt_tokens, record.output_tokens, record.worker) == (12, 4, "w1")
        assert record.bytes_out == len(answer.body) - len(SEAM)
        assert p.outcomes == [("w0", OutcomeKind.RESET), ("w1", OutcomeKind.OK)]
        assert len(p.notes.first) == 1
        told = [*ASKED["messages"], {"role": "assistant", "content": 'Grüße, he said "'}]
        more = {"max_tokens": 7, "continue_final_message": True, "add_generation_prompt": False}
        assert json.loads(second.requests[0].body) == {**ASKED, "messages": told, **more}


async def test_completions_go_on_behind_prompt_and_text():
    def text(number: int, piece: str, finish: str | None = None) -> bytes:
        choices = [{"index": 0, "text": piece, "logprobs": None, "finish_reason": finish}]
        return (
            b"data: "
            + json.dumps({"id": f"cmpl-{number}", "choices": choices}, separators=(",", ":")).encode()
            + b"\n\n"
        )

    begun, rest = [text(1, "a\n"), text(1, '"b')], [text(2, "c", "length"), DONE]
    asked = {"prompt": 'Say "', "stream": True}
    async with FaultServer(dies(begun)) as first, FaultServer(streams(rest)) as second, plane(first, second) as p:
        answer = await ask(p, first, b"".join(begun), asked, "/v1/completions")
        assert answer.body == b"".join(begun) + SEAM + text(1, "c", "length") + DONE
        assert json.loads(second.requests[0].body) == {**asked, "prompt": 'Say "a\n"b', "max_tokens": 14}
        assert (await p.notes.until(1))[0].output_tokens == 3


GIVES_UP = {
    "error event": [b'data: {"error":{"message":"EngineCore died","code":500}}\n\n', DONE],
    "abort": [chat(1, {"content": "lost"}, "abort"), DONE],
}


@pytest.mark.parametrize("what", GIVES_UP)
async def test_a_worker_that_says_it_gives_up_is_replaced_and_not_heard(what: str):
    script = streams([*FIRST, *GIVES_UP[what]])
    async with FaultServer(script) as first, FaultServer(streams(SECOND)) as second, plane(first, second) as p:
        answer = await ask(p, first, b"")
        assert answer.body == SEEN + REST + usage(1, 12, 4) + DONE
        assert p.outcomes == [("w0", OutcomeKind.SERVER_ERROR), ("w1", OutcomeKind.OK)]


async def test_a_worker_that_stands_still_is_replaced():
    script = streams(FIRST, end=False)
    async with (
        FaultServer(script) as first,
        FaultServer(streams(SECOND)) as second,
        plane(first, second, token_gap_s=0.2) as p,
    ):
        answer = await ask(p, first, b"")
        assert answer.body == SEEN + REST + usage(1, 12, 4) + DONE
        assert p.outcomes == [("w0", OutcomeKind.GAP_TIMEOUT), ("w1", OutcomeKind.OK)]


async def test_usage_that_only_we_asked_for_stays_hidden():
    async with FaultServer(dies(FIRST)) as first, FaultServer(streams(SECOND)) as second, plane(first, second) as p:
        p.gate.hide_usage = True
        assert (await ask(p, first, b"".join(FIRST))).body == SEEN + REST + DONE
        record = (await p.notes.until(1))[0]
        assert (record.prompt_tokens, record.output_tokens) == (12, 4)


async def test_before_the_first_text_the_question_is_asked_as_it_was():
    async with FaultServer(dies(FIRST[:1])) as first, FaultServer(streams(SECOND)) as second, plane(first, second) as p:
        answer = await ask(p, first, FIRST[0])
        assert answer.body == FIRST[0] + SEAM + REST + usage(1, 14, 2) + DONE
        assert second.requests[0].body == json.dumps(ASKED).encode()


async def test_an_unfinished_event_is_not_seen_twice():
    half = chat(1, {"content": "half of this"})

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD + b"".join(map(chunked, FIRST)) + chunked(half[:70]))
        await call.gate.wait()
        call.reset()

    async with FaultServer(script) as first, FaultServer(streams(SECOND)) as second, plane(first, second) as p:
        assert (await ask(p, first, b"".join(FIRST))).body == SEEN + REST + usage(1, 12, 4) + DONE


SECOND_DEATHS: dict[str, tuple[Script, bytes]] = {
    "in its stream": (dies([role(2), chat(2, {"content": "x"})], Call.close), SEAM + chat(1, {"content": "x"})),
    "before its first event": (closes(), b""),
    "with an error": (answers(http(500, b'{"error":{"message":"dead"}}')), b""),
    "with a refusal": (answers(http(400, b'{"error":{"message":"too long"}}')), b""),
    "with a large refusal": (answers(http(400, b'{"error":"%b"}' % (b"x" * 100_000))), b""),
    "with what is no stream": (ok(), b""),
    "with an error for its first event": (streams([b'data: {"error":{"message":"no","code":400}}\n\n', DONE]), b""),
}


@pytest.mark.parametrize("what", SECOND_DEATHS)
async def test_a_second_death_ends_the_stream_truthfully(what: str):
    script, more = SECOND_DEATHS[what]
    async with FaultServer(dies(FIRST)) as first, FaultServer(script) as second, plane(first, second) as p:
        p.gate.continue_streams = True
        opening = asyncio.ensure_future(second.call())
        opening.add_done_callback(lambda call: call.result().gate.set())
        answer = await ask(p, first, b"".join(FIRST))
        assert not answer.complete
        seen = b"".join(FIRST) + more
        assert answer.body.startswith(seen)
        error = json.loads(answer.body.removeprefix(seen)[6:])["error"]
        assert error["code"] in ("upstream_reset", "upstream_protocol_error", "upstream_error")
        (record,) = await p.notes.until(1)
        assert (record.status, record.outcome) == (200, Terminal.UPSTREAM_ERROR)
        assert record.output_tokens == 2 + bool(more)


async def test_with_no_worker_left_the_stream_ends_truthfully():
    async with FaultServer(dies(FIRST)) as first, plane(first) as p:
        answer = await ask(p, first, b"".join(FIRST))
        assert not answer.complete
        assert json.loads(answer.body.removeprefix(b"".join(FIRST))[6:])["error"]["code"] == "upstream_reset"


async def test_a_client_that_leaves_while_its_stream_waits_to_go_on():
    async with FaultServer(dies(FIRST)) as first, FaultServer(hangs()) as second, plane(first, second) as p:
        p.gate.continue_streams = True
        async with p.client() as client:
            await client.send(request(json.dumps(ASKED).encode()))
            await client.head()
            await anext(client.chunks())
            (await first.call()).gate.set()
            asked = await second.call()
        await asked.gone.wait()
        (record,) = await p.notes.until(1)
        assert (record.outcome, record.output_tokens) == (Terminal.CANCELLED, 2)


NOT_PLAIN = {
    "reasoning": chat(1, {"reasoning_content": "hm"}),
    "a tool call": chat(1, {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}),
    "another choice": chat(1, {"content": "x"}).replace(b'"index":0', b'"index":1'),
    "no JSON": b"data: {\n\n",
    "an event too long to keep": chat(1, {"content": "x" * 5 * HOLD_EVENT_BYTES}),
    "the end": chat(1, {"content": ""}, "stop"),
}


@pytest.mark.parametrize("what", NOT_PLAIN)
async def test_what_is_more_than_text_breaks_off_as_ever(what: str):
    events = [*FIRST, NOT_PLAIN[what]]
    async with FaultServer(dies(events)) as first, FaultServer(streams(SECOND)) as second, plane(first, second) as p:
        answer = await ask(p, first, b"".join(events))
        assert not answer.complete
        assert answer.body.startswith(b"".join(events) + b'data: {"error"')
        assert not second.requests


async def test_what_cannot_be_asked_again_breaks_off_as_ever():
    async with FaultServer(dies(FIRST)) as first, FaultServer(streams(SECOND)) as second, plane(first, second) as p:
        answer = await ask(p, first, b"".join(FIRST), {**ASKED, "tools": [{"type": "function"}]})
        assert not answer.complete
        assert not second.requests


async def test_an_error_that_cannot_be_made_up_for_is_passed_on():
    events = [*FIRST, *GIVES_UP["error event"]]
    async with FaultServer(streams(events)) as first, FaultServer(streams(SECOND)) as second, plane(first, second) as p:
        answer = await ask(p, first, b"", {**ASKED, "logprobs": True})
        assert answer.complete
        assert answer.body == b"".join(events)


CANNOT: list[dict[str, Any]] = [
    {"tools": [{}]},
    {"logprobs": True},
    {"echo": True},
    {"response_format": {"type": "json_object"}},
    {"continue_final_message": True},
    {"max_tokens": 3},
    {"max_completion_tokens": 2},
    {"max_tokens": "9"},
    {"messages": []},
    {"messages": "hi"},
]


@pytest.mark.parametrize("more", CANNOT)
def test_bodies_that_cannot_be_continued(more: dict[str, Any]):
    assert continued_body(Endpoint.CHAT, json.dumps({**ASKED, **more}).encode(), "text", 3) is None


def test_other_bodies_that_cannot_be_continued():
    for body in (b"[1]", b"{", b'{"messages":[{}],"messages":[{}]}', b"{}"):
        assert continued_body(Endpoint.CHAT, body, "text", 3) is None
    for prompt in ([1, 2], ["a"], None):
        assert continued_body(Endpoint.COMPLETIONS, json.dumps({"prompt": prompt}).encode(), "text", 3) is None


def test_the_clients_bytes_stay_around_what_changes():
    before, after = (
        b'"seed" : 1e-7, "messages" : [ {"role":"user","content":"\\u00e9]"} ',
        b'] , "tools":[], "logprobs": null }',
    )
    parts = continued_body(Endpoint.CHAT, b'{ "min_tokens":5,' + before + after, "\n", 3)
    assert parts is not None
    changed = b'{"continue_final_message":true,"add_generation_prompt":false, "min_tokens":2,'
    assert b"".join(parts) == changed + before + b',{"role":"assistant","content":"\\n"}' + after
