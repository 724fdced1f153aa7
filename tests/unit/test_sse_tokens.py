"""The tokens that a stream's events tell of do not depend on how the network cut it."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.sse import StreamKind, StreamWatcher


def chunk(content: str = "x", finish: str | None = None, **more: object) -> bytes:
    value = {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
DONE = b"data: [DONE]\n\n"


def delta(**members: object) -> bytes:
    value = {"choices": [{"index": 0, "delta": members, "finish_reason": None}]}
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


BOTH = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null},{"index":1,"delta":{},"finish_reason":null}]}\n\n'  # noqa: E501
EVENTS = [
    chunk(),
    chunk("another text"),
    chunk(""),
    chunk('"choices":[]'),
    chunk("finish_reason"),
    chunk("[DONE]"),
    chunk(usage=None),
    chunk("", usage=USAGE),
    chunk("y", usage=USAGE),
    chunk("", "stop"),
    chunk("z", "length"),
    chunk().replace(b'":', b'": '),
    chunk("").replace(b'":', b'": '),
    chunk("", "stop").replace(b":", b" : ").replace(b"data : ", b"data: "),
    BOTH,
    delta(),
    delta(role="assistant"),
    delta(role="assistant", content=""),
    delta(tool_calls=[{"index": 0, "function": {"arguments": ""}}]),
    delta(reasoning_content="so"),
    b'data: {"choices":[]}\n\n',
    b'data: {"choices": []}\n\n',
    b'data: {"choices":[],"usage":null}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
    b'data: {"choices":[],"seen":{"finish_reason":null}}\n\n',
    b'data: {"choices":null}\n\n',
    b"data: {}\n\n",
    b"data: []\n\n",
    b"data:\n\n",
    b"data\n\n",
    b"data: nonsense\n\n",
    b'data: {"choices":[\ndata: {"delta":{"content":"x"}}]}\n\n',
    b": comment\n\n",
    b"event: e\n" + chunk(),
    b'data: {"error":{"code":503}}\n\n',
    b'data: {"error":null,"choices":[]}\n\n',
    b'data: {"type":"response.failed"}\n\n',
    b'data: {"type":"message_start","message":{"usage":{"input_tokens":3,"output_tokens":1}}}\n\n',
    b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}\n\n',
    b'data: {"type":"message_stop"}\n\n',
    DONE,
]


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Whole events, and the same bytes cut anywhere: byte by byte, an event at a time, several, or none."""
    events = draw(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=10))
    if draw(st.booleans()):
        events = [chunk("first"), chunk("second"), *events]
    if draw(st.booleans()):
        events[0] = b"\xef\xbb\xbf" + events[0]
    end = draw(st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r"]))
    events = [event.replace(b"\n", end) if draw(st.booleans()) else event for event in events]
    data = b"".join(events)
    if draw(st.booleans()):
        ends = [sum(map(len, events[:at])) for at in range(1, len(events))]
        places = draw(st.sets(st.sampled_from(ends))) if ends else set()
    else:
        places = draw(st.sets(st.integers(1, len(data)), max_size=12))
    bounds = [0, *sorted(places), len(data)]
    return events, [data[start:stop] for start, stop in pairwise(bounds)]


def counted(pieces: list[bytes], kind: StreamKind) -> tuple[int, tuple[object, ...]]:
    """The tokens that events tell of, and what was seen of the stream beside them."""
    watcher = StreamWatcher(kind)
    events = sum(map(watcher.feed, pieces))
    watcher.end()
    seen = watcher.finished, watcher.finish_reason, watcher.aborted, watcher.done, watcher.error, watcher.usage
    return events - watcher.silent, seen


@settings(max_examples=400)
@given(cut_streams(), st.sampled_from(StreamKind))
def test_tokens_counted_by_events_do_not_depend_on_the_cuts(
    stream: tuple[list[bytes], list[bytes]], kind: StreamKind
) -> None:
    events, pieces = stream
    data = b"".join(events)
    whole = counted([data], kind)
    assert counted(pieces, kind) == whole
    assert counted(events, kind) == whole
    assert counted([data[at : at + 1] for at in range(len(data))], kind) == whole


@pytest.mark.parametrize(
    ("event", "tokens"),
    [
        (b'data: {"choices":[]}\n\n', 0),
        (b'data: {"choices": [], "usage": null}\n\n', 0),
        (chunk("", usage=USAGE), 0),
        (chunk("", "stop"), 0),
        (chunk("y", "stop"), 1),
        (chunk(""), 1),  # a token that is no whole character yet
        (delta(tool_calls=[{"index": 0}]), 1),
        (DONE, 0),
        (b'data: {"error":{"code":503}}\n\n', 0),
    ],
)
def test_which_events_are_tokens(event: bytes, tokens: int) -> None:
    before = [chunk()] * 3
    for pieces in ([*before, event, chunk()], [*before, event + chunk()], [b"".join([*before, event, chunk()])]):
        assert counted(pieces, StreamKind.CHOICES)[0] == 3 + tokens + 1


def test_what_comes_before_the_first_token_is_none() -> None:
    """Each choice begins with its role, in an event of its own; they may all come alone."""
    roles = [delta(role="assistant", content="") for _ in range(3)]
    for pieces in (
        [*roles, chunk(), chunk("")],
        [b"".join([*roles, chunk()]), chunk("")],
        [b": c\n\n", *roles, chunk() * 2],
    ):
        assert counted(pieces, StreamKind.CHOICES)[0] == 2
