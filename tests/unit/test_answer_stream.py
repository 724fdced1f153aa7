"""Streams of chat completions as a client reads them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.answer_stream import MAX_LINE_BYTES, Answer, StreamError
from loadtest.live_figures import Spread


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(finish: str | None = None, **parts: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": parts, "finish_reason": finish}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}})
DONE = b"data: [DONE]\n\n"
WHOLE = [delta(role="assistant", content=""), delta(content="a"), delta(content="b"), delta("stop", content="c"), USAGE]


def read(*pieces: bytes, step_s: float = 1.0) -> Answer:
    answer = Answer(Spread())
    for number, piece in enumerate(pieces, 1):
        answer.feed(piece, number * step_s)
    return answer


def test_a_whole_answer() -> None:
    answer = read(*WHOLE, DONE)
    assert (answer.first_s, answer.last_s) == (2.0, 4.0)  # the role alone is no token
    assert (answer.tokens_in, answer.tokens_out, answer.made) == (9, 4, 4)
    assert answer.tpot_s == pytest.approx(2 / 3)  # the engine counted four
    assert answer.done
    assert answer.finished
    assert answer.error is None
    assert answer.gaps.count == 2


def test_without_usage_events_are_counted() -> None:
    answer = read(delta(content="a"), delta(content="b"))
    assert (answer.made, answer.tpot_s, answer.done) == (2, 1.0, False)


@pytest.mark.parametrize("name", ["content", "reasoning_content", "reasoning"])
def test_thoughts_are_tokens_too(name: str) -> None:
    assert read(delta(**{name: "hm"})).first_s == 1.0


def test_calls_of_tools_are_tokens_too() -> None:
    assert read(delta(tool_calls=[{"index": 0}])).events == 1


def test_an_answer_without_a_word_is_there_at_its_end() -> None:
    answer = read(delta(role="assistant"), delta("stop"), DONE)
    assert (answer.first_s, answer.made, answer.tpot_s) == (2.0, 0, None)


def test_tokens_read_in_one_piece_share_the_time() -> None:
    answer = read(delta(content="a"), delta(content="b") + delta(content="c"))
    assert answer.gaps.count == 2
    assert answer.gaps.at(1.0) == pytest.approx(0.5, rel=0.03)


def test_an_error_ends_it() -> None:
    answer = read(delta(content="a"), event({"error": {"message": "broke", "type": "server_error", "code": "x"}}))
    assert answer.error == {"message": "broke", "type": "server_error", "code": "x"}
    assert read(event({"error": "broke"})).error == {"message": "broke"}


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"data: {\n\n", "not_json"), (b"data: 7\n\n", "not_an_event"), (b"x" * (MAX_LINE_BYTES + 1), "line_too_long")],
)
def test_what_is_no_stream_of_events(data: bytes, code: str) -> None:
    with pytest.raises(StreamError, match=code):
        read(data)


@pytest.mark.parametrize(
    "value",
    [
        {"choices": None},
        {"choices": [7]},
        {"choices": [{"delta": None}]},
        {"usage": {"prompt_tokens": "x", "completion_tokens": -1}},
        {"usage": 3},
    ],
)
def test_strange_events_count_nothing(value: object) -> None:
    answer = read(b": comment\n\nevent: x\ndata:\n\n", event(value))
    assert (answer.made, answer.tokens_in, answer.first_s) == (0, None, None)


@given(st.lists(st.integers(1, 400), max_size=20))
def test_however_it_is_cut_it_says_the_same(cuts: list[int]) -> None:
    stream = b"".join(WHOLE) + DONE
    answer = Answer(Spread())
    at = 0
    for cut in [*cuts, len(stream)]:
        answer.feed(stream[at : at + cut], 1.0)
        at += cut
    assert (answer.events, answer.tokens_out, answer.done, answer.finished) == (3, 4, True, True)
    assert answer.gaps.count <= 2  # none is known of those that came with the first
