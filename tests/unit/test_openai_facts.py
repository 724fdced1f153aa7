"""What a body says, endpoint by endpoint: never stricter than the engines, never raising."""

import json

import pytest

from gateway.errors import ErrorAnswer, ErrorCode
from gateway.facts import EXTRACT, MAX_TOKENS_CAP, BodyFacts
from gateway.openai import FORM_ENDPOINTS, body_limits, parse_facts
from gateway.prompts import AUDIO_TOKENS_MAX
from policies.document import Limits
from policies.endpoints import Endpoint
from policies.tokens import IMAGE_TOKENS, TEMPLATE_TOKENS_BASE, TEMPLATE_TOKENS_PER_MESSAGE, estimate_text

LIMITS = Limits()
FRAME = TEMPLATE_TOKENS_BASE + TEMPLATE_TOKENS_PER_MESSAGE  # around one message
TEXT = "Water turns the wheel and the wheel turns the mill."
TOKENS = estimate_text(TEXT)


def facts_of(endpoint: Endpoint, body: dict[str, object], limits: Limits = LIMITS) -> BodyFacts:
    facts = parse_facts(endpoint, json.dumps(body).encode(), body_limits(limits))
    assert isinstance(facts, BodyFacts), facts
    return facts


def refusal(endpoint: Endpoint, body: dict[str, object], limits: Limits = LIMITS) -> ErrorAnswer:
    answer = parse_facts(endpoint, json.dumps(body).encode(), body_limits(limits))
    assert isinstance(answer, ErrorAnswer)
    return answer


def user(content: object) -> list[object]:
    return [{"role": "user", "content": content}]


def test_every_endpoint_with_a_body_has_facts():
    assert set(EXTRACT) | FORM_ENDPOINTS == set(Endpoint) - {Endpoint.MODELS}


# === Fields that all have ===


def test_common_fields():
    facts = facts_of(
        Endpoint.CHAT,
        {
            "model": "m",
            "messages": [],
            "stream": True,
            "stream_options": {"include_usage": True},
            "service_tier": "flex",
            "priority": -100,
        },
    )
    assert (facts.model, facts.stream, facts.include_usage, facts.service_tier) == ("m", True, True, "flex")
    assert "priority" in facts.fields


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (False, False),
        (None, False),
        ("true", True),
        ("TRUE", True),
        ("1", True),
        ("no", False),
        (1, True),
        (1.0, True),
        (0, False),
        (2, False),
        ([], False),
        ({}, False),
    ],
)
def test_stream_is_read_as_engines_read_it(value: object, expected: bool):
    assert facts_of(Endpoint.CHAT, {"messages": [], "stream": value}).stream is expected


@pytest.mark.parametrize("options", [None, [], "x", {}, {"include_usage": False}, {"include_usage": None}])
def test_usage_that_was_not_asked_for(options: object):
    facts = facts_of(Endpoint.CHAT, {"messages": [], "stream": True, "stream_options": options})
    assert not facts.include_usage


@pytest.mark.parametrize("model", [None, ""])
def test_an_absent_model_is_left_to_the_caller(model: str | None):
    assert facts_of(Endpoint.CHAT, {"messages": [], "model": model}).model is None


@pytest.mark.parametrize("model", [5, True, ["m"], {"m": 1}, [["x"] * 1000]])
def test_a_model_of_another_type_is_refused(model: object):
    answer = refusal(Endpoint.CHAT, {"messages": [], "model": model})
    assert (answer.code, answer.param) == (ErrorCode.INVALID_VALUE, "model")
    assert len(answer.message) < 200


def test_only_fields_that_the_policy_lists_are_refused():
    body = {"messages": [], "logit_bias": {}, "made_up": {"deep": [1]}}
    assert facts_of(Endpoint.CHAT, body)
    assert facts_of(Endpoint.CHAT, body, Limits(refused_fields=("nope",)))
    answer = refusal(Endpoint.CHAT, body, Limits(refused_fields=("nope", "made_up")))
    assert (answer.code, answer.param) == (ErrorCode.UNSUPPORTED_PARAMETER, "made_up")


# === Counts ===

CHAT_LIMITS = [
    ({}, None),
    ({"max_tokens": 7}, 7),
    ({"max_completion_tokens": 9}, 9),
    ({"max_tokens": 7, "max_completion_tokens": 9}, 9),
    ({"max_completion_tokens": None, "max_tokens": 7}, 7),
    ({"max_tokens": None}, None),
    ({"max_tokens": "5"}, 5),
    ({"max_tokens": 5.0}, 5),
    ({"max_tokens": 5.5}, None),
    ({"max_tokens": "many"}, None),
    ({"max_tokens": "٥"}, None),
    ({"max_tokens": "+-5"}, None),
    ({"max_tokens": [5]}, None),
    ({"max_tokens": True}, None),
    ({"max_tokens": 0}, 0),
    ({"max_tokens": 10**30}, MAX_TOKENS_CAP),
]


@pytest.mark.parametrize(("fields", "expected"), CHAT_LIMITS)
def test_output_limits_of_chat(fields: dict[str, object], expected: int | None):
    assert facts_of(Endpoint.CHAT, {"messages": [], **fields}).max_output_tokens == expected


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        (Endpoint.COMPLETIONS, {"prompt": "x"}, 16),
        (Endpoint.COMPLETIONS, {"prompt": "x", "max_tokens": 0}, 0),
        (Endpoint.COMPLETIONS, {"prompt": "x", "max_tokens": 5}, 5),
        (Endpoint.RESPONSES, {"input": "x"}, None),
        (Endpoint.RESPONSES, {"input": "x", "max_output_tokens": 5}, 5),
        (Endpoint.MESSAGES, {"messages": [], "max_tokens": 5}, 5),
        (Endpoint.EMBEDDINGS, {"input": "x", "max_tokens": 5}, None),
    ],
)
def test_output_limits_elsewhere(endpoint: Endpoint, body: dict[str, object], expected: int | None):
    assert facts_of(endpoint, body).max_output_tokens == expected


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        (Endpoint.CHAT, {"max_tokens": -1}, "max_tokens"),
        (Endpoint.CHAT, {"max_tokens": -5, "max_completion_tokens": 5}, "max_tokens"),
        (Endpoint.CHAT, {"max_tokens": "-5"}, "max_tokens"),
        (Endpoint.CHAT, {"max_tokens": -(10**30)}, "max_tokens"),
        (Endpoint.CHAT, {"n": 0}, "n"),
        (Endpoint.CHAT, {"n": -1}, "n"),
        (Endpoint.CHAT, {"top_logprobs": -1}, "top_logprobs"),
        (Endpoint.CHAT, {"prompt_logprobs": -1}, "prompt_logprobs"),
        (Endpoint.COMPLETIONS, {"logprobs": -1}, "logprobs"),
        (Endpoint.COMPLETIONS, {"best_of": 0}, "best_of"),
        (Endpoint.RESPONSES, {"max_output_tokens": -1}, "max_output_tokens"),
        (Endpoint.MESSAGES, {"max_tokens": -1}, "max_tokens"),
    ],
)
def test_row_54_counts_that_no_engine_takes(endpoint: Endpoint, fields: dict[str, object], param: str):
    answer = refusal(endpoint, {"messages": [], "prompt": "x", "input": "x", **fields})
    assert (answer.code, answer.status, answer.param) == (ErrorCode.INVALID_VALUE, 400, param)
    assert param in answer.message


@pytest.mark.parametrize(
    ("endpoint", "fields", "expected"),
    [
        (Endpoint.CHAT, {}, 1),
        (Endpoint.CHAT, {"n": 2}, 2),
        (Endpoint.CHAT, {"n": None}, 1),
        (Endpoint.CHAT, {"n": "x"}, 1),
        (Endpoint.CHAT, {"n": 128}, 128),
        (Endpoint.COMPLETIONS, {"n": 2, "best_of": 4}, 4),
        (Endpoint.COMPLETIONS, {"prompt": ["a", "b", "c"], "n": 2}, 6),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (Endpoint.COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (Endpoint.EMBEDDINGS, {"input": ["a", "b", "c"]}, 1),
    ],
)
def test_sequences(endpoint: Endpoint, fields: dict[str, object], expected: int):
    assert facts_of(endpoint, {"messages": [], "prompt": "x", **fields}).sequences == expected


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (Endpoint.CHAT, {"n": 129}),
        (Endpoint.CHAT, {"n": 10**9}),
        (Endpoint.CHAT, {"n": 10**30}),
        (Endpoint.COMPLETIONS, {"best_of": 129}),
        (Endpoint.COMPLETIONS, {"prompt": ["a"] * 65, "n": 2}),
    ],
)
def test_row_54_sequences_beyond_the_policys_bound(endpoint: Endpoint, fields: dict[str, object]):
    answer = refusal(endpoint, {"messages": [], "prompt": "x", **fields})
    assert answer.code is ErrorCode.LIMIT_EXCEEDED
    assert "128 (limits.max_sequences)" in answer.message


# === Prompts ===


def test_br_04_01_a_tool_without_parameters_passes():
    plain = facts_of(Endpoint.CHAT, {"messages": user(TEXT)})
    with_tool = facts_of(
        Endpoint.CHAT, {"messages": user(TEXT), "tools": [{"type": "function", "function": {"name": "noop"}}]}
    )
    assert plain.prompt_tokens == FRAME + TOKENS
    assert with_tool.prompt_tokens > plain.prompt_tokens


CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}


@pytest.mark.parametrize(
    "assistant",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "assistant", "content": [{"type": "text", "text": ""}], "tool_calls": [CALL]},
        {"role": "assistant", "content": [], "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [None, {"function": None}, {}, "x"]},
        {"role": "assistant", "content": 5, "tool_calls": 7, "reasoning_content": {"a": 1}},
    ],
)
def test_br_04_03_contents_may_be_absent_null_empty_or_parts(assistant: dict[str, object]):
    messages = [*user(TEXT), assistant, {"role": "tool", "tool_call_id": "1", "content": "10"}]
    assert facts_of(Endpoint.CHAT, {"messages": messages}).prompt_tokens > TOKENS


def test_tool_calls_and_reasoning_count():
    bare = facts_of(Endpoint.CHAT, {"messages": [{"role": "assistant", "content": "", "x": 1}]}).prompt_tokens
    said = {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": TEXT}
    assert facts_of(Endpoint.CHAT, {"messages": [said]}).prompt_tokens > bare + TOKENS


def test_the_text_of_parts_counts_and_images_cost_a_bounded_number():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 100_000}}
    facts = facts_of(Endpoint.CHAT, {"messages": user([{"type": "text", "text": TEXT}, image, TEXT, 5])})
    assert facts.prompt_tokens == FRAME + IMAGE_TOKENS + estimate_text(f"{TEXT}\n{TEXT}")
    sound = {"type": "input_audio", "input_audio": {"data": "QUJD"}}
    assert facts_of(Endpoint.CHAT, {"messages": user([sound])}).prompt_tokens == FRAME + AUDIO_TOKENS_MAX


@pytest.mark.parametrize("messages", ["text", 5, {"role": "user"}, True])
def test_messages_of_another_type_are_refused(messages: object):
    for endpoint in (Endpoint.CHAT, Endpoint.MESSAGES):
        answer = refusal(endpoint, {"messages": messages})
        assert (answer.code, answer.param) == (ErrorCode.INVALID_VALUE, "messages")


def test_what_cannot_be_guessed_is_missing():
    assert refusal(Endpoint.CHAT, {}).code is ErrorCode.MISSING_PARAMETER
    assert refusal(Endpoint.COMPLETIONS, {"model": "m"}).param == "prompt"
    assert facts_of(Endpoint.COMPLETIONS, {"prompt_embeds": "QUJD"})


def test_unknown_roles_and_messages_that_are_no_objects_are_the_engines_to_judge():
    facts = facts_of(Endpoint.CHAT, {"messages": [{"role": "user2", "content": TEXT}, "x", None, 5, []]})
    assert facts.prompt_tokens == TEMPLATE_TOKENS_BASE + 5 * TEMPLATE_TOKENS_PER_MESSAGE + TOKENS


@pytest.mark.parametrize(
    ("prompt", "total", "longest", "exact"),
    [
        (TEXT, TOKENS, TOKENS, False),
        ([TEXT], TOKENS, TOKENS, False),
        ([TEXT, TEXT], estimate_text(f"{TEXT}\n{TEXT}"), TOKENS, False),
        ([5, 6, 7], 3, 3, True),
        ([[5, 6], [7], [8, 9, 10]], 6, 3, True),
        ([[5, 6], TEXT], 2 + TOKENS, TOKENS, False),
        ([], 1, 1, False),
        ("", 1, 1, False),
        ({"a": 1}, 1, 1, False),
        ([None], 1, 1, False),
    ],
)
def test_the_forms_of_a_prompt(prompt: object, total: int, longest: int, exact: bool):
    for endpoint, name in ((Endpoint.COMPLETIONS, "prompt"), (Endpoint.EMBEDDINGS, "input")):
        facts = facts_of(endpoint, {name: prompt})
        assert (facts.prompt_tokens, facts.longest_prompt, facts.prompt_exact) == (total, longest, exact)


def test_the_longest_of_several_prompts_is_the_one_with_most_tokens():
    chinese = "水" * 1000
    facts = facts_of(Endpoint.EMBEDDINGS, {"input": ["a" * 2000, chinese, "b"]})
    assert facts.longest_prompt == estimate_text(chinese)


def test_responses():
    spoken = facts_of(Endpoint.RESPONSES, {"input": TEXT, "instructions": TEXT})
    assert spoken.prompt_tokens == 2 * TOKENS + FRAME
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": TEXT}, {"type": "input_image", "detail": "low"}]},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": TEXT},
    ]
    listed = facts_of(Endpoint.RESPONSES, {"input": items, "instructions": None})
    assert listed.prompt_tokens > 2 * TOKENS + IMAGE_TOKENS
    assert facts_of(Endpoint.RESPONSES, {"prompt": {"id": "x"}}).prompt_tokens >= 1


def test_anthropic_messages():
    body = {"messages": user(TEXT), "system": TEXT, "max_tokens": 5}
    said = facts_of(Endpoint.MESSAGES, body)
    assert said.prompt_tokens == 2 * TOKENS + FRAME + TEMPLATE_TOKENS_PER_MESSAGE
    parts = facts_of(Endpoint.MESSAGES, {**body, "system": [{"type": "text", "text": TEXT}]})
    assert parts.prompt_tokens == said.prompt_tokens
    result = {"type": "tool_result", "content": [{"type": "text", "text": TEXT}, {"type": "image", "source": {}}]}
    used = {"type": "tool_use", "name": "f", "input": {"a": TEXT}}
    thought = {"type": "thinking", "thinking": TEXT}
    facts = facts_of(Endpoint.MESSAGES, {"messages": user([result, used, thought])})
    assert facts.prompt_tokens > 3 * TOKENS + IMAGE_TOKENS


def test_contents_that_hold_contents_end_somewhere():
    inner: object = TEXT
    for _ in range(20):
        inner = [{"type": "tool_result", "content": inner}]
    assert facts_of(Endpoint.MESSAGES, {"messages": user(inner)}).prompt_tokens == FRAME


@pytest.mark.parametrize("endpoint", [Endpoint.EMBEDDINGS, Endpoint.CLASSIFY, Endpoint.POOLING])
def test_inputs_may_be_conversations(endpoint: Endpoint):
    assert facts_of(endpoint, {"messages": user(TEXT)}).prompt_tokens == FRAME + TOKENS


def test_pairs_put_the_query_before_each_document():
    ranked = facts_of(Endpoint.RERANK, {"query": TEXT, "documents": [TEXT, TEXT]})
    assert ranked.longest_prompt == 2 * TOKENS
    assert ranked.prompt_tokens == estimate_text(f"{TEXT}\n{TEXT}") + 2 * TOKENS
    scored = facts_of(Endpoint.SCORE, {"text_1": TEXT, "text_2": [{"content": [{"type": "text", "text": TEXT}]}]})
    assert scored.prompt_tokens == 2 * TOKENS
    paired = facts_of(Endpoint.SCORE, {"queries": [TEXT, TEXT], "documents": [TEXT, TEXT]})
    assert paired.prompt_tokens == 2 * estimate_text(f"{TEXT}\n{TEXT}")
    assert facts_of(Endpoint.SCORE, {}).prompt_tokens == 1


def test_tokenizing_takes_no_place_in_a_model():
    assert facts_of(Endpoint.TOKENIZE, {"prompt": TEXT * 1000}).prompt_tokens == 1
    assert facts_of(Endpoint.DETOKENIZE, {"tokens": [1] * 1000}).prompt_tokens == 1


def test_br_05_01_no_script_is_undercounted():
    for text, least in (
        ("水" * 3000, 1800),
        ("한" * 3000, 1800),
        ("あ" * 3000, 1500),
        ("👍" * 3000, 3000),
        ("ก" * 3000, 750),
    ):
        assert facts_of(Endpoint.CHAT, {"messages": user(text)}).prompt_tokens >= least
    prose = (TEXT + " ") * 100
    assert 500 <= facts_of(Endpoint.CHAT, {"messages": user(prose[:3000])}).prompt_tokens <= 1000
