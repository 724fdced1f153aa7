"""How the simulated engine reads requests: what the wire tests of its errors do not show."""

from __future__ import annotations

from typing import Any

import pytest

from workers.engines.simulator_requests import ApiError, RequestParser, busy, dead, not_found, parse_object
from workers.engines.simulator_text import IMAGE_TOKENS, Vocabulary

HELLO = [{"role": "user", "content": "hi"}]


def parser(**changes: Any) -> RequestParser:
    return RequestParser(("tiny", "alias"), changes.get("max_model_len", 1000), Vocabulary())


def chat(priority_header: str | None = None, **fields: Any) -> Any:
    return parser().generation({"messages": HELLO, **fields}, chat=True, priority_header=priority_header)


def length(messages: list[Any], **fields: Any) -> int:
    return len(parser().chat_pieces({"messages": messages, **fields}))


def test_the_template_costs_five_tokens_a_message_and_four_at_the_end() -> None:
    assert length(HELLO) == 1 + 5 + 4
    assert length([*HELLO, *HELLO]) == 2 * 6 + 4
    assert length(HELLO, add_generation_prompt=False) == 6
    assert parser().chat_pieces({"messages": HELLO})[:4] == ("<|im_start|>", "user", "\n", "hi")


def test_a_final_message_to_be_continued_stays_open() -> None:
    pieces = parser().chat_pieces({"messages": HELLO, "continue_final_message": True})
    assert pieces[-1] == "hi"


def test_content_in_parts_images_tools_and_calls_are_counted() -> None:
    parts = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {}}, "hi", {"type": "odd"}, 7]
    assert length([{"role": "user", "content": parts}]) == length(HELLO) + IMAGE_TOKENS + 1
    assert length([{"role": "user"}]) == length(HELLO) - 1
    assert length([{"content": None, "tool_calls": [{"id": "x", "function": {"name": "f"}}]}]) > length(HELLO)
    assert length(HELLO, tools=[{"type": "function"}]) > length(HELLO)
    assert length(HELLO, tools=[]) == length(HELLO)


def test_prompts_come_as_text_texts_ids_and_lists_of_ids() -> None:
    own = parser()
    ids = own.vocabulary.encode(("hi", " there"))
    for prompt, wanted in (
        ("hi there", (("hi", " there"),)),
        (["hi", "yo"], (("hi",), ("yo",))),
        (ids, (("hi", " there"),)),
        ([ids, ids], (("hi", " there"),) * 2),
    ):
        assert own.prompt_pieces({"prompt": prompt}) == wanted


def test_max_completion_tokens_wins_and_the_context_clamps() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).max_tokens == (7,)
    assert chat().max_tokens == (1000 - 10,)
    assert chat(max_tokens=1000).max_tokens == (990,)
    completion = parser().generation({"prompt": ["hi", "hi there"], "max_tokens": 999}, chat=False)
    assert completion.max_tokens == (999, 998)


@pytest.mark.parametrize(
    ("header", "body", "priority"), [(None, 3, 3), ("-7", 3, -7), ("x", 3, 3), ("", 3, 3), (None, None, 0)]
)
def test_the_header_overrides_the_bodys_priority(header: str | None, body: int | None, priority: int) -> None:
    assert chat(header, priority=body).priority == priority


def test_stop_comes_as_text_or_list_and_odd_values_are_left_out() -> None:
    assert chat(stop="a").stop == ("a",)
    assert chat(stop=["a", 1, "b"]).stop == ("a", "b")
    assert chat(stop=7).stop == ()
    assert chat(stop_token_ids=[1, "x"]).stop_token_ids == (1,)


def test_an_alias_is_a_model_and_no_name_means_the_first() -> None:
    assert chat(model="alias").model == "alias"
    assert chat(model="").model == chat().model == "tiny"


def test_logprobs_of_chat_and_completion() -> None:
    assert chat(top_logprobs=3).logprobs is None
    assert chat(logprobs=True, top_logprobs=3).logprobs == 3
    assert chat(logprobs=True).logprobs == 0
    assert parser().generation({"prompt": "hi", "logprobs": 2}, chat=False).logprobs == 2
    assert parser().generation({"prompt": "hi"}, chat=False).logprobs is None


def test_usage_in_every_event_needs_usage_at_the_end() -> None:
    asked = chat(stream=True, stream_options={"continuous_usage_stats": True})
    assert (asked.include_usage, asked.continuous_usage) == (False, False)
    odd = chat(stream=True, stream_options="x")
    assert not odd.include_usage


def test_tools_pass_where_the_choice_is_none() -> None:
    assert chat(tools=[{"type": "function"}], tool_choice="none").chat


def test_bodies_as_json_with_parameters_of_the_content_type() -> None:
    assert parse_object(b'{"a": 1}', "Application/JSON; charset=utf-8") == {"a": 1}
    with pytest.raises(ApiError):
        parse_object(b"{}", "")


def test_numbers_out_of_range_are_refused_not_crashed_on() -> None:
    for value in (1e400, "9" * 5000, {}):
        with pytest.raises(ApiError):
            chat(max_tokens=value)
    with pytest.raises(ApiError, match="maximum context"):
        parser().prompt_pieces({"prompt": ["x" * 40_000]})


def test_bodies_of_errors() -> None:
    assert not_found().payload() == {"detail": "Not Found"}
    assert (busy().status, dead().status) == (503, 500)
    assert busy().body().startswith(b'{"error":{"message":"The engine is currently busy')
