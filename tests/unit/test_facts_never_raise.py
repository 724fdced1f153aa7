"""Whatever bytes or JSON a client sends, reading it ends in facts or in a 400, never in an exception."""

import json

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import ErrorAnswer
from gateway.facts import BodyFacts
from gateway.openai import body_limits, parse_facts
from policies.document import Limits
from policies.endpoints import Endpoint

LIMITS = body_limits(Limits())

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["content", "text", "type", "image_url", "function", "arguments", "tool_calls", "input", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=16,
)
bodies = st.dictionaries(
    st.sampled_from(
        [
            *("model", "messages", "prompt", "input", "stream", "stream_options", "n", "best_of", "max_tokens"),
            *("max_completion_tokens", "max_output_tokens", "tools", "system", "instructions", "query", "documents"),
            *("text_1", "text_2", "service_tier", "user", "logprobs"),
            *("cache_salt", "top_logprobs", "prompt_logprobs", "priority"),
        ]
    ),
    json_values,
    max_size=8,
)
endpoints = st.sampled_from([endpoint for endpoint in Endpoint if endpoint is not Endpoint.MODELS])


@given(endpoints, bodies)
@example(Endpoint.CHAT, {"messages": [{"role": "user", "content": [{"type": []}]}]})
@example(Endpoint.RERANK, {"query": [{"type": {}}]})
def test_no_json_raises(endpoint, body):
    result = parse_facts(endpoint, json.dumps(body).encode(), LIMITS)
    if isinstance(result, BodyFacts):
        assert result.prompt_tokens >= result.longest_prompt >= 1 or endpoint in (Endpoint.RERANK, Endpoint.SCORE)
        assert 1 <= result.sequences <= LIMITS.max_sequences
    else:
        assert result.status in (400, 415)
        orjson.loads(result.body())


@given(endpoints, st.binary(max_size=300), st.binary(max_size=60))
def test_no_bytes_raise(endpoint, body, content_type):
    assert isinstance(parse_facts(endpoint, body, LIMITS, content_type), (BodyFacts, ErrorAnswer))
