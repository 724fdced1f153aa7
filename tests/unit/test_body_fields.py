"""Which fields of a body are found in the one walk over their names."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway import body_fields
from gateway.body_fields import ENGINE_FIELDS
from gateway.facts import BodyLimits, common

LIMITS = BodyLimits(64, 8, ())

NAMES = {
    body_fields.STREAM: {"stream"},
    body_fields.STREAM_OPTIONS: {"stream_options"},
    body_fields.SERVICE_TIER: {"service_tier"},
    body_fields.CACHE_SALT: {"cache_salt"},
    body_fields.TOOLS: {"tools"},
    body_fields.COUNTS: {"n", "best_of"},
    body_fields.COMPLETION_LIMIT: {"max_completion_tokens"},
    body_fields.LOGPROBS: {"logprobs", "top_logprobs", "prompt_logprobs"},
    body_fields.ENGINE: set(ENGINE_FIELDS),
}


@given(st.sets(st.sampled_from(sorted(set().union(*NAMES.values()))) | st.text(max_size=5)))
def test_a_bit_is_set_exactly_where_one_of_its_fields_is_there(names: set[str]) -> None:
    found = common(dict.fromkeys(names), LIMITS)
    assert found.marks == sum(bit for bit, fields in NAMES.items() if fields & names)


def test_values_are_taken_on_the_way() -> None:
    body: dict[str, Any] = {"stream": "yes", "messages": [1], "seed": 3, "max_tokens": 7, "model": "m"}
    found = common(body, LIMITS)
    assert (found.stream, found.messages, found.max_tokens, found.model) == (True, [1], 7, "m")
    assert found.fields is body
