"""A real vLLM killed in the middle of streams: they go on at another one, and the client reads one answer."""

import contextlib
import json
import urllib.request

import openai
import pytest
from real_support import LONG_LENGTH, MODEL, SEQUENCES, SHORT_LENGTH, Command, get_json, kv_tokens, until

TOKENS = 200
GREEDY = {"temperature": 0, "max_tokens": TOKENS, "stream": True}
EXTRA = {"ignore_eos": True}
SEEN = 20  # events read before the engine dies


@pytest.fixture
def continuing(engines, logs, tmp_path):
    """A gateway of its own in front of the two engines, whose policy continues streams; the short one comes first."""
    (tmp_path / "policy.yaml").write_text(
        f"models: {{{MODEL}: {{pools: [short-chat, long-context]}}}}\n"
        "pools: {short-chat: {may_borrow: [long-context]}, long-context: {}}\n"
        "retries: {continue_streams: true}\n"
    )
    workers = [
        {
            "id": name,
            "url": engines.servers[name].url,
            "pool": pool,
            "models": [MODEL],
            "max_model_len": length,
            "max_num_seqs": SEQUENCES,
            "kv_tokens": kv_tokens(length),
        }
        for name, pool, length in (("short", "short-chat", SHORT_LENGTH), ("long", "long-context", LONG_LENGTH))
    ]
    settings = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "redis": "none",
        "drain_s": 5,
        "policy": str(tmp_path / "policy.yaml"),
        "state_dir": str(tmp_path / "state"),
        "workers": workers,
    }
    (tmp_path / "headrace.yaml").write_text(json.dumps(settings))
    command = Command.headrace(logs / "continuing.log", "serve", "-c", str(tmp_path / "headrace.yaml"))
    try:
        yield command.ready()
    finally:
        command.stop()
        if engines.servers["short"].ended.is_set():
            engines.restart("short")


@pytest.fixture
def client(continuing):
    with openai.OpenAI(base_url=continuing["data"] + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def ask(client, chat, **more):
    """A stream of events with the text of each."""
    if chat:
        messages = [{"role": "user", "content": "Tell me about the sea."}]
        return client.chat.completions.create(model=MODEL, messages=messages, extra_body=EXTRA, **{**GREEDY, **more})
    return client.completions.create(model=MODEL, prompt="Of the sea:", extra_body=EXTRA, **{**GREEDY, **more})


def text_of(event):
    choice = event.choices[0]
    return (choice.text if hasattr(choice, "text") else choice.delta.content) or ""


def events_of(stream):
    return [event for event in stream if event.choices]


def samples(admin, name):
    with urllib.request.urlopen(admin + "/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{")}


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
def test_streams_go_on_when_their_engine_is_killed(client, continuing, engines, chat):
    whole = events_of(ask(client, chat))
    options = {"stream_options": {"include_usage": True}}
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(ask(client, chat, **options)) for _ in range(3)]
        begun = [[next(stream) for _ in range(SEEN)] for stream in streams]
        assert [stream.response.headers["x-headrace-worker"] for stream in streams] == ["short"] * 3
        engines.servers["short"].kill()
        answers = [events + list(stream) for events, stream in zip(begun, streams, strict=True)]
    for answer in answers:
        usage = answer[-1].usage
        assert not answer[-1].choices
        events = answer[:-1]
        assert len({event.id for event in answer}) == len({event.created for event in answer}) == 1
        assert events[-1].choices[0].finish_reason == "length"
        assert [event.choices[0].finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
        assert usage.completion_tokens == TOKENS
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        if chat:
            assert [event.choices[0].delta.role for event in events].count("assistant") == 1
        # What came before the cut is what came without one; behind it the text is read anew as tokens.
        kept = "".join(map(text_of, events[:SEEN]))
        assert "".join(map(text_of, whole)).startswith(kept)
        assert len("".join(map(text_of, events))) > len(kept)
    found = samples(continuing["admin"], "headrace_continuations_total")
    gone_on = sum(value for labels, value in found.items() if 'outcome="ok"' in labels)
    # On a busy machine an answer may have been whole before the engine was killed.
    assert 1 <= gone_on == sum(found.values()) <= 3
    until(lambda: get_json(f"{continuing['admin']}/admin/v1/fleet")["in_flight"] == 0, what="no request in flight")
