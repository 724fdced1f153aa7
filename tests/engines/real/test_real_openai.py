"""What the official client sees of a real vLLM through the gateway."""

import openai
import pytest
from real_support import MODEL

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"unit": {"type": "string", "enum": ["c", "f"]}}},
    },
}


def chat(client, **more):
    options = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0, "seed": 7} | more
    options.setdefault("extra_body", {"ignore_eos": True})
    return client.chat.completions.create(**options)


def test_an_answer_is_the_engines_own(fleet, client):
    through = chat(client)
    with openai.OpenAI(base_url=fleet.engines.servers["short"].url + "/v1", api_key="none") as direct_client:
        direct = chat(direct_client)
    assert through.choices[0].message.content
    assert through.choices[0].finish_reason == "length"
    assert through.usage.completion_tokens == 12
    differs = {"id", "created"}
    assert through.model_dump(exclude=differs) == direct.model_dump(exclude=differs)


def test_headers_say_where_it_went(fleet, client):
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES, max_tokens=2)
    assert raw.headers["x-headrace-pool"] == "short-chat"
    assert raw.headers["x-headrace-worker"] == "short"
    assert raw.headers["x-headrace-attempts"] == "1"
    assert raw.headers["x-request-id"]


def test_a_stream_adds_up_to_the_answer(fleet, client):
    whole = chat(client).choices[0].message.content
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12


def test_a_usage_chunk_nobody_asked_for_does_not_appear(fleet, client):
    chunks = list(chat(client, stream=True))
    assert all(chunk.choices for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


def test_two_answers_at_once(fleet, client):
    answer = chat(client, n=2, temperature=1.0, seed=None)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 24
    chunks = list(chat(client, n=2, temperature=1.0, seed=None, stream=True))
    assert {chunk.choices[0].index for chunk in chunks} == {0, 1}


def test_logprobs(fleet, client):
    tokens = chat(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(tokens) == 12
    assert all(len(token.top_logprobs) >= 2 for token in tokens)


def test_tools(fleet, client):
    named = {"type": "function", "function": {"name": "weather"}}
    # At temperature 0 a random model may write one number for ever; at 1 it comes to an end.
    options = {"tools": [WEATHER], "tool_choice": named, "max_tokens": 400, "temperature": 1.0, "extra_body": {}}
    message = chat(client, **options).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["weather"]
    deltas = [chunk.choices[0].delta for chunk in chat(client, stream=True, **options)]
    assert [d.tool_calls[0].function.name for d in deltas if d.tool_calls and d.tool_calls[0].function.name] == [
        "weather"
    ]
    message = chat(client, tools=[WEATHER], tool_choice="none").choices[0].message
    assert not message.tool_calls
    assert message.content


def test_completions(fleet, client):
    answer = client.completions.create(
        model=MODEL, prompt=["The house", "The sea"], max_tokens=5, extra_body={"ignore_eos": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 10


def test_models_are_listed(fleet, client):
    assert MODEL in {model.id for model in client.models.list().data}


def test_an_unknown_model_is_not_found(fleet, client):
    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, model="nobody")
    assert caught.value.body["code"] == "model_not_found"
    assert caught.value.body["param"] == "model"


def test_a_wrong_value_is_refused_in_the_engines_words(fleet, client):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, logprobs=True, top_logprobs=2, temperature=-1.0)
    assert "temperature" in caught.value.body["message"]


def test_embeddings_are_refused_truthfully(fleet, client):
    """A chat model has no embeddings: the client is told so, in a way that it does not try again."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model=MODEL, input="the sea")
    assert caught.value.response.headers["x-should-retry"] == "false"
