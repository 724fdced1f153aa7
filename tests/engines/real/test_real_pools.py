"""Real prompts find the pool that can take them, and what the engines measure becomes visible."""

import threading

import openai
import pytest
from real_support import LONG_LENGTH, MODEL, SHORT_LENGTH, kv_tokens, until

IGNORE_EOS = {"ignore_eos": True}


def ask(client, words, **more):
    """A chat with a prompt of so many common words, one token each."""
    text = "the sea and the house " * (words // 5)
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": text}], **{"max_tokens": 8, "extra_body": IGNORE_EOS, **more}
    )
    return raw.headers["x-headrace-worker"], raw.headers["x-headrace-pool"], raw.parse()


def test_a_short_prompt_goes_to_the_short_pool_and_a_long_one_to_the_long_pool(fleet, client):
    worker, pool, answer = ask(client, 50)
    assert (worker, pool) == ("short", "short-chat")
    assert answer.usage.prompt_tokens < 100
    worker, pool, answer = ask(client, 5000)
    assert (worker, pool) == ("long", "long-context")
    assert SHORT_LENGTH < answer.usage.prompt_tokens < LONG_LENGTH


def test_a_large_output_budget_counts_as_well(fleet, client):
    assert ask(client, 50, max_tokens=2500, stream=False)[:2] == ("long", "long-context")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_too_long_for_every_pool_gets_the_engines_own_refusal(fleet, client, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, 20_000, stream=stream)
    error = caught.value
    assert error.status_code == 400
    assert error.body["message"].startswith(f"This model's maximum context length is {LONG_LENGTH} tokens.")
    assert error.body["type"] == "BadRequestError"
    assert error.body["param"] == "input_tokens"
    assert fleet.states() == {"ready"}


def test_a_prompt_that_no_estimate_can_be_wrong_about_is_refused_without_an_engine(fleet, client):
    before = fleet.engines.reading("long").prompt_tokens
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, 60_000)
    assert caught.value.body["code"] == "context_length_exceeded"
    assert fleet.engines.reading("long").prompt_tokens == before


def test_kv_usage_shows_in_redis_and_in_the_fleet_and_rises_under_load(fleet, client):
    fleet.wait_idle()
    until(lambda: fleet.engines.report("short").kv_usage == 0, what="a report without KV usage")
    capacity = fleet.engines.report("short").kv_tokens
    assert capacity == kv_tokens(SHORT_LENGTH)
    stop = threading.Event()

    def load():
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Tell me about the sea."}],
            max_tokens=1500,
            stream=True,
            extra_body=IGNORE_EOS,
        )
        for _ in stream:
            if stop.is_set():
                break
        stream.close()

    streams = [threading.Thread(target=load) for _ in range(2)]
    for each in streams:
        each.start()
    try:
        early = until(lambda: (report := fleet.engines.report("short")).kv_usage and report, what="KV usage in Redis")
        later = until(
            lambda: (report := fleet.engines.report("short")).kv_usage > early.kv_usage and report,
            what="KV usage that rises",
        )
        assert later.running >= 1
        assert later.generation_tokens > early.generation_tokens
        view = until(
            lambda: (view := fleet.view("short"))["report"]["kv_usage"] > 0 and view, what="KV usage in the fleet"
        )
        assert view["report"]["running"] >= 1
        assert view["kv_capacity_tokens"] == capacity
        assert 0 < view["kv_used_tokens"] <= capacity
    finally:
        stop.set()
        for each in streams:
            each.join(60)
    until(lambda: fleet.engines.report("short").kv_usage == 0, what="KV usage that falls again")
    fleet.wait_idle()
