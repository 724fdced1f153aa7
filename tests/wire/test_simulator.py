"""The simulated engine on the wire: answers, errors and framing, held against what vLLM 0.32 was seen to send."""

from __future__ import annotations

from typing import Any

import pytest
from simulator_support import CHAT, HELLO, ask, client, simulated

COMPLETIONS = "/v1/completions"


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HELLO, "max_tokens": 4, "temperature": 0, **fields}


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hi", "max_tokens": 4, "temperature": 0, **fields}


async def test_a_chat_answer_has_vllms_fields() -> None:
    async with simulated() as engine:
        answer = await ask(engine.port, CHAT, chat(), headers="X-Request-Id: abc\r\n")
    assert answer.status == 200
    assert list(answer.headers) == ["date", "server", "content-length", "content-type", "vary"]
    body = answer.json()
    assert list(body) == [
        *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
        *("prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics"),
    ]
    choice = body["choices"][0]
    assert list(choice) == [
        *("index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts")
    ]
    assert (body["id"], body["object"], choice["finish_reason"]) == ("chatcmpl-abc", "chat.completion", "length")
    assert body["usage"]["completion_tokens"] == 4
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 4


async def test_a_stream_is_role_content_finish_usage_done_one_event_a_chunk() -> None:
    async with simulated() as engine:
        answer = await ask(engine.port, CHAT, chat(stream=True, stream_options={"include_usage": True}))
    assert list(answer.headers) == ["date", "server", "content-type", "vary", "transfer-encoding"]
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert all(
        each.startswith(b"data: ") and each.endswith(b"\n\n") and each.count(b"\n") == 2 for each in answer.chunks
    )
    role, *content, usage = answer.events
    assert role["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert [each["choices"][0]["finish_reason"] for each in content] == [None, None, None, "length"]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 4)
    assert "system_fingerprint" not in content[-1]
    assert answer.chunks[-1] == b"data: [DONE]\n\n"


async def test_without_usage_the_last_content_event_carries_the_fingerprint() -> None:
    async with simulated() as engine:
        answer = await ask(engine.port, CHAT, chat(stream=True))
    assert "system_fingerprint" in answer.events[-1]
    assert all("usage" not in event for event in answer.events)


async def test_continuous_usage_is_in_every_event() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with simulated() as engine:
        answer = await ask(engine.port, CHAT, chat(stream=True, stream_options=options))
    assert [event["usage"]["completion_tokens"] for event in answer.events] == [0, 1, 2, 3, 4, 4]


async def test_streamed_and_whole_answers_say_the_same_for_a_fixed_seed_and_others_differ() -> None:
    async with simulated(seed=3) as engine, simulated(seed=3) as twin:
        body = chat(max_tokens=40, temperature=1, seed=5, ignore_eos=True)
        whole = (await ask(engine.port, CHAT, body)).json()["choices"][0]["message"]["content"]
        streamed = (await ask(twin.port, CHAT, body | {"stream": True})).text
        other = (await ask(engine.port, CHAT, body | {"seed": 6})).json()["choices"][0]["message"]["content"]
        first, second = [
            (await ask(engine.port, CHAT, chat(temperature=1))).json()["choices"][0]["message"]["content"] for _ in "ab"
        ]
    assert whole == streamed != other
    assert first != second


async def test_n_choices_and_several_prompts_have_their_index() -> None:
    async with simulated() as engine:
        two = await ask(engine.port, CHAT, chat(n=2, temperature=1, stream=True))
        many = await ask(engine.port, COMPLETIONS, completion(prompt=[[40], [40, 41]], n=2, temperature=1))
    assert {event["choices"][0]["index"] for event in two.events} == {0, 1}
    assert [event["choices"][0]["finish_reason"] for event in two.events].count("length") == 2
    assert [choice["index"] for choice in many.json()["choices"]] == [0, 1, 2, 3]
    assert many.json()["usage"] | {"total_tokens": 0} == {
        "prompt_tokens": 3,
        "total_tokens": 0,
        "completion_tokens": 16,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


async def test_completions_have_no_role_event_and_default_to_16_tokens() -> None:
    async with simulated(mean_output=0) as engine:
        answer = await ask(
            engine.port, COMPLETIONS, {"prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}
        )
    assert answer.events[0]["choices"][0]["text"] != ""
    assert answer.events[-1]["usage"] == {"prompt_tokens": 1, "total_tokens": 17, "completion_tokens": 16}


async def test_output_ends_by_itself_unless_told_not_to() -> None:
    async with simulated(mean_output=20, speed=500.0) as engine:
        lengths = []
        for seed in range(30):
            body = chat(max_tokens=1000, temperature=1, seed=seed)
            choice = (answer := (await ask(engine.port, CHAT, body)).json())["choices"][0]
            assert choice["finish_reason"] == "stop"
            lengths.append(answer["usage"]["completion_tokens"])
        ignored = (await ask(engine.port, CHAT, chat(max_tokens=300, ignore_eos=True))).json()
        least = (await ask(engine.port, CHAT, chat(max_tokens=300, min_tokens=200))).json()
        free = (await ask(engine.port, CHAT, {"messages": HELLO})).json()
    assert 10 < sum(lengths) / 30 < 40
    assert ignored["usage"]["completion_tokens"] == 300
    assert 200 <= least["usage"]["completion_tokens"] <= 300
    assert free["choices"][0]["finish_reason"] == "stop"


async def test_a_stop_string_ends_the_text_before_it() -> None:
    async with simulated() as engine:
        whole = (await ask(engine.port, COMPLETIONS, completion(max_tokens=30, ignore_eos=True))).json()
        text = whole["choices"][0]["text"]
        words = text.split()
        body = completion(max_tokens=30, ignore_eos=True, stop=[words[9] + " " + words[10]])
        cut = (await ask(engine.port, COMPLETIONS, body)).json()["choices"][0]
        streamed = await ask(engine.port, COMPLETIONS, body | {"stream": True})
        kept = (await ask(engine.port, COMPLETIONS, body | {"include_stop_str_in_output": True})).json()["choices"][0]
    assert text.startswith(cut["text"] + body["stop"][0])
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", body["stop"][0])
    assert streamed.text == cut["text"]
    assert kept["text"] == cut["text"] + body["stop"][0]


async def test_logprobs_and_echo() -> None:
    async with simulated() as engine:
        whole = (await ask(engine.port, CHAT, chat(logprobs=True, top_logprobs=2))).json()["choices"][0]["logprobs"]
        streamed = await ask(engine.port, CHAT, chat(logprobs=True, top_logprobs=2, stream=True))
        echoed = (await ask(engine.port, COMPLETIONS, completion(echo=True, logprobs=1))).json()["choices"][0]
        only = (await ask(engine.port, COMPLETIONS, completion(echo=True, max_tokens=0))).json()
        body = completion(echo=True, stream=True)
        stream_echo = await ask(engine.port, COMPLETIONS, body)
    assert [len(entry["top_logprobs"]) for entry in whole["content"]] == [2] * 4
    assert whole["content"] == [
        entry for event in streamed.events for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert echoed["text"].startswith("hi ")
    assert echoed["logprobs"]["tokens"] == [" " + word for word in echoed["text"].split()[1:]]
    assert only["usage"]["completion_tokens"] == 1
    assert stream_echo.text.startswith("hi ")


ERRORS: list[tuple[str, Any, str, int, Any]] = [
    (CHAT, b'{"model":', "", 400, ("body.9", "'type': 'json_invalid', 'loc': 'body.9'")),
    (CHAT, b"", "", 400, ("body", "'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'")),
    (CHAT, {"model": "tiny"}, "", 400, ("body.messages", "'input': '<dict of 1 items>'")),
    (CHAT, chat(messages="x"), "", 400, ("body.messages", "Input should be a valid list', 'input': 'x'")),
    (CHAT, chat(messages=["x"]), "", 400, ("body.messages.0", "valid dictionary")),
    (CHAT, chat(max_tokens="five"), "", 400, ("body.max_tokens", "unable to parse string as an integer")),
    (CHAT, chat(max_tokens=1.5), "", 400, ("body.max_tokens", "fractional part")),
    (CHAT, chat(n=[1]), "", 400, ("body.n", "Input should be a valid integer")),
    (CHAT, chat(temperature="hot"), "", 400, ("body.temperature", "valid number")),
    (CHAT, [1], "", 400, ("body", "valid dictionary or object to extract fields from', 'input': '<list of 1 items>'")),
    (CHAT, chat(), "content-type: text/plain\r\n", 400, (None, "Only 'application/json' is allowed")),
    (CHAT, chat(model="nope"), "", 404, ("model", "The model `nope` does not exist. Valid aliases: tiny.")),
    (CHAT, chat(max_tokens=0), "", 400, ("max_tokens", "max_tokens must be at least 1, got 0. (parameter=max_tokens,")),
    (
        CHAT,
        chat(max_tokens=5000),
        "",
        400,
        ("max_tokens", "max_tokens=5000 cannot be greater than max_model_len=2048."),
    ),
    (CHAT, chat(temperature=-1), "", 400, ("temperature", "temperature must be non-negative, got -1.0.")),
    (CHAT, chat(temperature=3), "", 400, ("temperature", "temperature must be in [0, 2], got 3.0.")),
    (CHAT, chat(top_p=2), "", 400, ("top_p", "top_p must be in (0, 1], got 2.0.")),
    (CHAT, chat(n=0), "", 400, (None, "n must be at least 1, got 0.")),
    (CHAT, chat(n=2), "", 400, (None, "n must be 1 when using greedy sampling, got 2.")),
    (CHAT, chat(logprobs=True, top_logprobs=30), "", 400, ("logprobs", "greater than max allowed: 20")),
    (
        CHAT,
        chat(tools=[{"type": "function"}]),
        "",
        400,
        (None, '"auto" tool choice requires --enable-auto-tool-choice'),
    ),
    (
        CHAT,
        chat(stream_options={}),
        "",
        400,
        ("stream_options", "Stream options can only be defined when `stream=True`."),
    ),
    (CHAT, chat(messages=[]), "", 400, (None, "Cannot apply chat template to an empty conversation.")),
    (COMPLETIONS, completion(suffix="x"), "", 400, ("suffix", "suffix is only supported")),
    (COMPLETIONS, {"model": "tiny"}, "", 400, ("prompt", "Either prompt or prompt_embeds must be provided")),
    (COMPLETIONS, completion(prompt=[{}]), "", 400, ("body.prompt.str", "valid string")),
    (COMPLETIONS, completion(prompt=[40] * 2048), "", 400, ("max_tokens", "max_tokens must be at least 1, got 0.")),
    (
        COMPLETIONS,
        completion(prompt=[40] * 2049),
        "",
        400,
        ("input_tokens", "contains at least 2049 input tokens, which"),
    ),
    (CHAT, chat(messages=[{"content": "word " * 3000}]), "", 400, ("input_tokens", "maximum context length is 2048")),
    (
        CHAT,
        chat(messages=[{"content": "w" * 70000}]),
        "",
        400,
        ("input_text", "contains 70000 characters (more than 65536"),
    ),
]


@pytest.mark.parametrize(("path", "body", "headers", "status", "says"), ERRORS)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_wrong_is_said_as_vllm_says_it(
    path: str, body: Any, headers: str, status: int, says: tuple[str | None, str], stream: bool
) -> None:
    if stream and isinstance(body, dict) and "stream_options" not in body:
        body = body | {"stream": True}
    async with simulated() as engine:
        answer = await ask(engine.port, path, body, headers=headers)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (status, says[0])
    wanted = (
        says[1].replace("of 1 items", "of 2 items") if stream and body == {"model": "tiny", "stream": True} else says[1]
    )
    assert wanted in error["message"]
    kinds = {404: "NotFoundError", 400: "Bad Request" if "validation error" in error["message"] else "BadRequestError"}
    assert error["type"] == kinds[status]


async def test_undecodable_bodies_and_coercions() -> None:
    async with simulated() as engine, client(engine.port) as own:
        for body in (b'{"model":"\xff"}', b"[" * 100_000):
            answer = await own.ask(CHAT, body)
            assert (answer.status, answer.json()) == (400, {"detail": "There was an error parsing the body"})
        coerced = await own.ask(CHAT, chat(max_tokens="5"))
        assert coerced.json()["usage"]["completion_tokens"] == 5
        double = await own.ask(CHAT, b'{"messages":[{"content":"hi"}],"max_tokens":9,"max_tokens":2,"x":NaN}')
        assert double.json()["usage"]["completion_tokens"] == 2
        clamped = await own.ask(COMPLETIONS, completion(prompt=[40] * 2040, max_tokens=50, ignore_eos=True))
        assert clamped.json()["usage"]["completion_tokens"] == 8


async def test_the_official_client_is_content() -> None:
    openai = pytest.importorskip("openai")
    async with simulated(request_id_headers=True) as engine:
        api = openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0)
        async with api:
            assert [model.id async for model in await api.models.list()] == ["tiny"]
            whole = await api.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5)
            assert whole._request_id
            stream = await api.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, stream=True)
            assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "length"
            with pytest.raises(openai.NotFoundError):
                await api.embeddings.create(model="tiny", input="x")
            with pytest.raises(openai.BadRequestError, match="maximum context length"):
                await api.completions.create(model="tiny", prompt="word " * 3000)
