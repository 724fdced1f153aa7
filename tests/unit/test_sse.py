"""The stream watcher reads the same whatever the cuts, and never raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.sse import MAX_LINE_BYTES, StreamKind, StreamWatcher
from gateway.usage import Usage


def chunk(content: str = "x", finish: str | None = None, **more: object) -> bytes:
    value = {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
DONE = b"data: [DONE]\n\n"


def watch(data: bytes, size: int | None = None, kind: StreamKind = StreamKind.CHOICES) -> tuple[StreamWatcher, int]:
    watcher = StreamWatcher(kind)
    size = size or len(data) or 1
    return watcher, sum(watcher.feed(data[at : at + size]) for at in range(0, len(data), size))


def seen(watcher: StreamWatcher) -> tuple[object, ...]:
    return (
        watcher.finished,
        watcher.finish_reason,
        watcher.aborted,
        watcher.done,
        watcher.error,
        watcher.error_first,
        watcher.usage,
        watcher.invalid,
        watcher.open,
    )


def test_a_plain_stream():
    """Role chunk, content, finish reason, usage, [DONE]: five data events, the last one too."""
    watcher, events = watch(chunk() + chunk() + chunk("", "stop") + b'data: {"choices":[],"usage":%b}\n\n' % json.dumps(USAGE).encode() + DONE)  # fmt: skip # noqa: E501
    assert events == 5
    assert watcher.finished
    assert watcher.finish_reason == "stop"
    assert watcher.done
    assert watcher.usage == Usage(3, 2)
    assert watcher.error is None
    assert not watcher.open


def test_one_event_of_several_choices_hides_no_end_of_another():
    """Counts of a piece with several events, or several choices, must not make up for each other."""
    several = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":%b},{"index":1,"delta":{"content":"b"},"finish_reason":null}]}\n\n'  # noqa: E501
    watcher = StreamWatcher()
    for _ in range(3):
        watcher.feed(chunk())
    watcher.feed(several % b"null" + chunk("", "stop"))
    assert watcher.finish_reason == "stop"
    watcher = StreamWatcher()
    for piece in (chunk(), several % b"null", several % b"null", several % b'"length"', several % b'"length"'):
        watcher.feed(piece)
    assert watcher.finish_reason == "length"


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : ")])
def test_spacing_of_the_json_does_not_matter(separators: tuple[str, str]):
    """vLLM writes compact chunks and spaced errors; others do as they like."""
    watcher = StreamWatcher()
    for finish in (None, None, "length"):
        value = {"choices": [{"finish_reason": finish}], "usage": USAGE if finish else None}
        watcher.feed(b"data: " + json.dumps(value, separators=separators).encode() + b"\n\n")
        assert watcher.finished == (finish is not None)
    assert watcher.usage == Usage(3, 2)


def test_the_common_piece_is_counted_without_decoding():
    watcher, _ = watch(chunk())
    assert watcher.feed(chunk() + chunk() + b": comment\n\n" + chunk()) == 3
    assert watcher.feed(b": comment\n\n") == 0
    assert watcher.feed(b"event: x\ndata: {}\n\n") == 1
    assert watcher.invalid == 0


def test_text_that_talks_about_the_markers():
    """Quotes inside a string are escaped, so no text is taken for a member."""
    text = '"finish_reason":"stop" "usage":{"prompt_tokens":1} "error":{} data: [DONE]'
    watcher, _ = watch(chunk())
    assert watcher.feed(chunk(text)) == 1
    assert seen(watcher) == (False, None, False, False, None, False, None, 0, False)


PIECES = [
    chunk("你好😀"),
    chunk("\u2028\u2029\x85"),
    chunk("", "stop"),
    DONE,
    b": c\n\n",
    b"\n",
    b"x\n",
    b'data: {"error":{"code":503}}\n\n',
    b"event: e\n",
]
NAMES = "choices usage error type code delta message response finish_reason prompt_tokens output_tokens stop_reason"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(NAMES.split()), inner),
)


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.integers(1, 40))
def test_cuts_do_not_matter(pieces: list[bytes], end: bytes, size: int):
    """BR-01-01, BR-01-11: whole, in pieces and byte by byte read the same, with any line end."""
    data = b"".join(pieces).replace(b"\n", end)
    whole, events = watch(data)
    for cut in (1, size):
        watcher, count = watch(data, cut)
        assert count == events
        assert seen(watcher) == seen(whole)


@given(st.binary(max_size=300), st.integers(1, 20))
def test_nothing_makes_it_raise(data: bytes, size: int):
    for kind in StreamKind:
        watcher, _ = watch(data, size, kind)
        watcher.end()


@given(VALUES)
def test_no_json_makes_it_raise(value: object):
    for kind in StreamKind:
        watch(b"data: " + json.dumps(value).encode() + b"\n\n", kind=kind)


def test_boundary_tells_where_the_last_whole_event_ends():
    watcher = StreamWatcher()
    watcher.feed(chunk() + b"data: {")
    assert watcher.open
    assert watcher.boundary == len(chunk())
    watcher.feed(b'"a":1}')
    assert watcher.open
    assert watcher.boundary == 0
    watcher.feed(b"\n\n")
    assert not watcher.open
    watcher.feed(chunk())
    assert not watcher.open


def test_an_lf_after_a_cr_belongs_to_it():
    watcher = StreamWatcher()
    assert watcher.feed(b"data: a\r\n\r") == 1
    assert not watcher.open
    assert watcher.feed(b"\n") == 0
    assert not watcher.open
    assert watcher.boundary == 1
    assert watcher.feed(b"data: b\r") == 0
    assert watcher.feed(b"\ndata: c\r\n\r\n") == 1
    assert watcher.feed(b"") == 0


def test_a_byte_order_mark_and_fields_without_a_space():
    assert watch(b'\xef\xbb\xbfdata:{"choices":[{"finish_reason":"stop"}]}\n\n')[0].finished
    assert watch(b"data\n\n")[1] == 0
    assert watch(b"database: x\n\n")[1] == 0


def test_data_over_several_lines_is_one_event():
    watcher, events = watch(b'data: {"choices":\ndata: [{"finish_reason":"stop"}]}\n\n')
    assert events == 1
    assert watcher.finished


def test_errors():
    watcher, _ = watch(b'data: {"error": {"message": "m", "code": 503}}\n\n' + DONE)
    assert watcher.error is not None
    assert watcher.error.status == 503
    assert watcher.error.payload == b'{"error": {"message": "m", "code": 503}}'
    assert watcher.error_first
    assert watcher.done
    watcher, _ = watch(chunk() + b'data: {"error": "text"}\n\ndata: {"error": {"code": 400}}\n\n')
    assert watcher.error is not None
    assert (watcher.error.status, watcher.error_first) == (None, False)
    for code, status in (("429", 429), ("invalid", None), (200, None), (True, None), (None, None)):
        watcher, _ = watch(b"data: " + json.dumps({"error": {"code": code}}).encode() + b"\n\n")
        assert watcher.error is not None
        assert watcher.error.status == status
    assert watch(b'data: {"error": null, "choices": []}\n\n')[0].error is None


def test_abort_is_not_success():
    watcher, _ = watch(chunk("", "abort") + DONE)
    assert watcher.aborted
    assert not watcher.finished


def test_what_is_no_json_object_is_counted():
    assert watch(b"data: nonsense\n\ndata: [1]\n\ndata: 5\n\n")[0].invalid == 3


def test_lines_over_the_limit_pass_unread():
    """Row 26: only so much is kept, and the next event is read again."""
    watcher = StreamWatcher()
    half = MAX_LINE_BYTES // 2
    watcher.feed(b"data: ")
    for _ in range(4):
        watcher.feed(b"x" * half)
        assert watcher.open
        assert len(watcher._line) <= MAX_LINE_BYTES
    assert watcher.feed(b'"finish_reason":"stop"\n\n' + chunk("", "length")) == 2
    assert watcher.finish_reason == "length"
    # A long line that ends in the same piece, and a long event of short lines.
    assert watcher.feed(b"data: " + b"y" * (MAX_LINE_BYTES + 1) + b"\r\n\r\n") == 1
    assert watcher.feed(b": " + b"y" * (MAX_LINE_BYTES + 1) + b"\r\n\r\n") == 0
    assert watcher.feed(b"data: z\r\n" * (MAX_LINE_BYTES // 2 + 1) + b"\r\n") == 1
    assert not watcher.open
    assert watcher.feed(chunk("", "stop")) == 1
    assert watcher.finish_reason == "stop"


def test_the_end_of_the_stream_ends_line_and_event():
    watcher, events = watch(chunk("", "stop") + b"data: [DONE]")
    assert (events, watcher.done) == (1, False)
    watcher.end()
    assert watcher.done
    watcher, _ = watch(b"data: [DONE]\n")
    watcher.end()
    assert watcher.done


def typed(kind: str, **more: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode()


def test_responses_api():
    usage = {"input_tokens": 5, "output_tokens": 7}
    start = typed("response.created", response={"usage": None, "error": None})
    for kind in ("completed", "incomplete"):
        watcher, events = watch(start + typed("response.output_text.delta") + typed(f"response.{kind}", response={"usage": usage}), kind=StreamKind.RESPONSES)  # fmt: skip # noqa: E501
        assert events == 3
        assert (watcher.finished, watcher.done, watcher.usage) == (True, True, Usage(5, 7))
    watcher, _ = watch(start, kind=StreamKind.RESPONSES)
    watcher.feed(typed("response.output_text.delta"))
    watcher.feed(typed("response.failed", response={"error": {"code": "server_error"}}))
    assert watcher.error is not None
    assert not watcher.error_first
    watch(typed("response.completed", response=None), kind=StreamKind.RESPONSES)


def test_anthropic_messages():
    watcher = StreamWatcher(StreamKind.MESSAGES)
    watcher.feed(typed("message_start", message={"usage": {"input_tokens": 5, "output_tokens": 1}}))
    watcher.feed(typed("content_block_delta", delta={"text": "x"}))
    assert not watcher.finished
    watcher.feed(typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9}))
    watcher.feed(typed("message_stop"))
    assert (watcher.finished, watcher.done, watcher.usage) == (True, True, Usage(5, 9))
    watcher, _ = watch(typed("error", error={"type": "overloaded_error"}), kind=StreamKind.MESSAGES)
    assert watcher.error is not None
    for odd in (typed("message_start", message=1), typed("message_delta", delta=1), typed("ping")):
        watch(odd, kind=StreamKind.MESSAGES)


TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(['"', "\\", "\n", "\r", "usage", "error", "[DONE]", "finish_reason", 'a"usage"', "x" * 300, ""]),
)
RAW = st.one_of(
    st.binary(max_size=6), st.sampled_from([b"\n\n", b'"', b"\\", b"\r", b'"usage"', b'","error":{"a":1},"b":"'])
)


@given(
    st.lists(TEXTS, max_size=12),
    st.sampled_from(["content", "reasoning_content", "text"]),
    st.lists(RAW, max_size=4),
    st.integers(1, 4),
)
def test_events_like_the_one_before_say_the_same_as_when_they_are_read(
    texts: list[str], name: str, raw: list[bytes], at_once: int
):
    kind = StreamKind.MESSAGES if name == "text" else StreamKind.CHOICES
    frame = chunk("\0").replace(b'"content"', b'"%b"' % name.encode())
    events = [frame.replace(b"\\u0000", json.dumps(text, ensure_ascii=False).encode()[1:-1]) for text in texts]
    events += [frame.replace(b"\\u0000", text) for text in raw]
    watcher, reading = StreamWatcher(kind), StreamWatcher(kind)
    reading._lessons = 0
    pieces = [b"".join(events[at : at + at_once]) for at in range(0, len(events), at_once)]
    for event in (frame, frame, *pieces, chunk("", "stop"), DONE):
        assert watcher.feed(event) == reading.feed(event)
        assert (watcher.open, watcher.in_data) == (reading.open, reading.in_data)
    # Of what is not decoded each event counts as one with a token, also one whose text is empty.
    assert watcher.silent == reading.silent or "" in texts or b"" in raw
    assert seen(watcher)[:-2] == seen(reading)[:-2]


def test_what_is_like_the_event_before_is_not_looked_through():
    watcher, _ = watch(chunk() + chunk())
    watcher.feed(chunk())
    assert watcher._like_the_last(chunk("another text")) == 1
    assert watcher._like_the_last(chunk() + chunk("y") + chunk("")) == 3
    assert watcher._like_the_last(chunk("") + chunk("")) == 2
    assert not watcher._like_the_last(chunk("another", "stop"))
    assert not watcher._like_the_last(chunk('a "quote'))
    for short in (b'"', b"\r", b"\n", b'abcdefghijk"', b'abcdefghijkl"', b"abcdefghijkl\n"):
        assert not watcher._like_the_last(chunk("\0").replace(b"\\u0000", short))
    assert watcher._like_the_last(chunk("abcdefghijkl")) == watcher._like_the_last(chunk("abcdefghijklm")) == 1
    assert not watcher._like_the_last(chunk() + chunk("a", "stop") + chunk())
    assert not watcher._like_the_last(chunk() + b": comment\n\n" + chunk())
    assert not watcher._like_the_last(chunk("x" * 200) + chunk("x" * 57))
