"""BR-01-09: the engine's counts are read once in every shape, and what only we asked for is hidden from clients."""

from __future__ import annotations

import json

import pytest
from data_plane import STREAM, plane, request
from fault_server import DONE, STREAM_HEAD, FaultServer, answers, chunked, event, streams
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.hidden_usage import HidingEvents, without_usage
from gateway.http.sse import StreamWatcher
from gateway.records import Terminal

USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
ALONE = event(usage=USAGE)
PING = b": ping\n\n"
TEXT = ROLE + event("Hel") + event("lo") + event("!") + event("", finish="stop")


def with_usage(data: bytes, usage: object) -> bytes:
    """The same event with its usage as said."""
    value = json.loads(data[6:])
    return b"data: " + json.dumps({**value, "usage": usage}, separators=(",", ":")).encode() + b"\n\n"


RIDING = ROLE + event("Hel") + event("lo") + with_usage(event("!", finish="stop"), USAGE)
NULLS = b"".join(with_usage(one, None) for one in (event("Hel"), event("lo"), event("", finish="stop")))

SHAPES = {
    "A: an event of its own": (TEXT + ALONE + DONE, TEXT + DONE),
    "B: on the last choice": (RIDING + DONE, RIDING + DONE),
    "C: null on every other": (NULLS + ALONE + DONE, NULLS + DONE),
    "with CRLF": ((TEXT + ALONE + DONE).replace(b"\n", b"\r\n"), (TEXT + DONE).replace(b"\n", b"\r\n")),
    "no [DONE] behind it": (TEXT + ALONE, TEXT),
    "a comment in between": (
        TEXT + b": ping\n\n" + ALONE + b": ping\n\n" + DONE,
        TEXT + b": ping\n\n: ping\n\n" + DONE,
    ),
    "an unfinished end": (TEXT + ALONE.rstrip(b"\n"), TEXT),
}


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
async def test_usage_is_counted_once_and_hidden_from_who_did_not_ask(shape: str, bytewise: bool):
    sent, seen = SHAPES[shape]
    script = streams([sent], bytewise=bytewise)
    async with FaultServer(script) as engine, plane(engine) as p, p.client() as client:
        for hide in (True, False):
            p.gate.hide_usage = hide
            answer = await client.post(STREAM)
            assert answer.complete
            assert answer.body == (seen if hide else sent)
            record = (await p.notes.until(1)).pop()
            assert (record.outcome, record.prompt_tokens, record.output_tokens) == (Terminal.OK, 11, 3)
            outcome = p.dispatcher.full.pop()
            assert (outcome.prompt_tokens, outcome.output_tokens) == (11, 3)


async def test_what_looks_like_usage_in_text_stays():
    tricky = event('"usage":{"prompt_tokens":1} and data: {"choices":[],"usage":{"prompt_tokens":1}}')
    body = ROLE + tricky + event("", finish="stop") + DONE
    async with FaultServer(streams([body])) as engine, plane(engine) as p, p.client() as client:
        p.gate.hide_usage = True
        assert (await client.post(STREAM)).body == body


async def test_a_stream_that_breaks_while_usage_is_hidden_ends_with_its_error():
    cut = STREAM_HEAD + chunked(TEXT + ALONE[:40])
    async with FaultServer(answers(cut, then_close=True)) as engine, plane(engine) as p, p.client() as client:
        p.gate.hide_usage = True
        answer = await client.post(STREAM)
        assert not answer.complete
        assert answer.body.startswith(TEXT + b'data: {"error"')


async def test_without_usage_tokens_are_the_events_that_bring_some():
    """The role, the end and `[DONE]` are no tokens."""
    async with FaultServer(streams([TEXT + DONE])) as engine, plane(engine) as p, p.client() as client:
        await client.post(STREAM)
        assert (await p.notes.until(1))[0].output_tokens == 3
        async with p.client() as another:
            engine.scripts = [answers(STREAM_HEAD + chunked(ROLE + event("a") + event("b")))]
            await another.send(request(STREAM))
            await another.head()
            assert await anext(another.chunks()) == ROLE + event("a") + event("b")
        record = (await p.notes.until(2))[1]
        assert (record.outcome, record.output_tokens) == (Terminal.CANCELLED, 2)


PIECES = st.lists(
    st.sampled_from(
        [ROLE, event("x"), event("y" * 50), ALONE, DONE, b": c\n\n", b"\n", b"id: 1\r\n\r\n", b"data:\n\n"]
    ),
    max_size=12,
)


@given(PIECES, st.lists(st.integers(1, 200), max_size=20))
def test_hiding_does_not_depend_on_the_cuts(pieces: list[bytes], sizes: list[int]):
    data = b"".join(pieces)
    watcher, events, out, at = StreamWatcher(), HidingEvents(), b"", 0
    for size in [*sizes, len(data) + 1]:
        piece = data[at : at + size]
        at += size
        watcher.feed(piece)
        out += events.take(piece, watcher.boundary, unfinished=watcher.open)
    assert out + events.rest() == without_usage(data) == b"".join(one for one in pieces if one is not ALONE)
