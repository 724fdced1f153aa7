"""Which fields of a body are found in the one walk over their names."""

from hypothesis import given
from hypothesis import strategies as st

from gateway import body_fields
from gateway.body_fields import ENGINE_FIELDS, marks

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
    found = marks(dict.fromkeys(names))
    assert found == sum(bit for bit, fields in NAMES.items() if fields & names)
