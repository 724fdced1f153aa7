"""Running a simulated engine: metrics, faults and state, keys, pooling, queue limits, the command itself."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import pytest
from simulator_support import CHAT, HELLO, Answer, Client, ask, client, simulated, until

from workers.engines.simulator import Simulator
from workers.engines.simulator_faults import AdminServer
from workers.engines.vllm import VLLM

SHORT = {"messages": HELLO, "max_tokens": 3, "ignore_eos": True}
LONG = {"messages": HELLO, "max_tokens": 1500, "ignore_eos": True, "stream": True}


@asynccontextmanager
async def faulty(**changes: Any) -> AsyncIterator[tuple[Simulator, int]]:
    async with simulated(**changes) as engine:
        admin = AdminServer(engine)
        await admin.start("127.0.0.1", 0)
        try:
            yield engine, admin.port
        finally:
            admin.close()


async def switch(admin: int, mode: str, **fields: Any) -> None:
    answer = await ask(admin, "/fault", {"mode": mode, **fields})
    assert answer.status == 200, answer.body


class TestMetrics:
    async def test_they_are_read_by_the_vllm_adapter_and_rise_with_the_work(self) -> None:
        async with simulated(kv_tokens=4096) as engine:
            for _ in "ab":
                await ask(engine.port, CHAT, SHORT | {"messages": [{"content": "same words " * 40}]})
            scrape = await ask(engine.port, "/metrics")
            assert scrape.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
            reading = VLLM.read_metrics(scrape.body, scrape.headers)
        assert (reading.running, reading.waiting, reading.kv_usage, reading.kv_tokens) == (0, 0, 0.0, 4096)
        assert (reading.generation_tokens, reading.prompt_tokens) == (6, engine.core.prompt_tokens)
        assert reading.prefix_hits > 0
        lines = scrape.body.decode().splitlines()
        tiny = '{engine="0",finished_reason="length",model_name="tiny"}'
        assert f"vllm:request_success_total{tiny} 2.0" in lines
        for name, count in (("time_to_first_token", 2), ("inter_token_latency", 4), ("e2e_request_latency", 2)):
            assert f'vllm:{name}_seconds_count{{engine="0",model_name="tiny"}} {count}.0' in lines
        assert 'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 2.0' in lines

    async def test_usage_and_queue_show_while_they_last(self) -> None:
        async with simulated(max_num_seqs=2, kv_tokens=2048, speed=1.0) as engine:
            clients = [await Client.connect(engine.port) for _ in range(3)]
            for each in clients:
                each.send(CHAT, LONG)
            await until(lambda: engine.core.generated_tokens > 3)
            scrape = await ask(engine.port, "/metrics")
            reading = VLLM.read_metrics(scrape.body, scrape.headers)
            for each in clients:
                each.close()
        assert (reading.running, reading.waiting) == (2, 1)
        assert reading.kv_usage is not None
        assert 0 < reading.kv_usage < 0.2

    async def test_a_label_cannot_be_broken_out_of(self) -> None:
        async with simulated(models=('a"b\n\\',)) as engine:
            text = (await ask(engine.port, "/metrics")).body.decode()
        assert r'model_name="a\"b\n\\"' in text


class TestFaults:
    async def test_answers_in_the_engines_stead(self) -> None:
        async with faulty() as (engine, admin), client(engine.port) as own:
            await switch(admin, "busy503", retry_after=2, count=1)
            busy = await own.ask(CHAT, SHORT)
            assert (busy.status, busy.headers["retry-after"]) == (503, "2")
            assert busy.json()["error"]["type"] == "Service Unavailable"
            assert (await own.ask(CHAT, SHORT)).status == 200, "one request only"
            await switch(admin, "error500")
            assert (await own.ask("/health")).status == 200
            broken = await own.ask(CHAT, SHORT)
            assert (broken.status, broken.json()["error"]["type"]) == (500, "InternalServerError")
            await switch(admin, "status", status=429)
            assert (await own.ask(CHAT, SHORT)).status == 429
            await switch(admin, "none")
            assert (await own.ask(CHAT, SHORT)).status == 200

    async def test_refuse_closes_the_door_and_lets_finish_what_is_inside(self) -> None:
        async with faulty() as (engine, admin), client(engine.port) as own, client(engine.port) as idle:
            await idle.ask("/health")
            own.send(CHAT, LONG)
            await own.head()
            await switch(admin, "refuse")
            assert await idle.eof() == b""
            with pytest.raises(ConnectionRefusedError):
                await Client.connect(engine.port)
            while await own.chunk():
                pass
            await switch(admin, "none")
            assert (await ask(engine.port, "/health")).status == 200

    @pytest.mark.parametrize("mode", ["hang", "stall"])
    async def test_a_hung_engine_goes_on_where_it_was(self, mode: str) -> None:
        async with faulty(speed=1.0) as (engine, admin), client(engine.port) as own, client(engine.port) as late:
            own.send(CHAT, LONG | {"max_tokens": 20})
            await own.head()
            await own.chunk()
            await switch(admin, mode)
            tokens = engine.core.generated_tokens
            late.send("/health" if mode == "hang" else CHAT, None if mode == "hang" else LONG | {"max_tokens": 2})
            if mode == "stall":
                assert (await late.head())[0] == 200
            await until(lambda: engine.requests_total >= 2)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(late.reader.readexactly(1), 0.1)
            assert engine.core.generated_tokens == tokens
            await switch(admin, "none")
            while await own.chunk():
                pass
            if mode == "hang":
                assert (await late.answer()).status == 200
            else:
                while await late.chunk():
                    pass

    async def test_a_client_that_leaves_a_hung_engine_is_forgotten(self) -> None:
        async with faulty() as (engine, admin):
            await switch(admin, "hang")
            own = await Client.connect(engine.port)
            own.send(CHAT, SHORT)
            await until(lambda: engine.requests_total == 1)
            own.close()
            await until(lambda: not engine.connections)
            await switch(admin, "none")
            assert engine.generations_total == 0

    async def test_slow_is_slower(self) -> None:
        async with faulty(speed=5.0) as (engine, admin):
            loop = asyncio.get_running_loop()
            times = []
            for mode in ("none", "slow"):
                await switch(admin, mode, factor=8)
                start = loop.time()
                await ask(engine.port, CHAT, SHORT | {"max_tokens": 20})
                times.append(loop.time() - start)
        assert times[1] > 4 * times[0]

    async def test_cut_resets_after_its_tokens(self) -> None:
        async with faulty() as (engine, admin):
            await switch(admin, "cut", after_tokens=3, count=2)
            async with client(engine.port) as own:
                own.send(CHAT, LONG)
                await own.head()
                pieces = []
                with suppress(asyncio.IncompleteReadError, ConnectionResetError):
                    while piece := await own.chunk():
                        pieces.append(piece)
                assert 1 <= len(pieces) <= 4
                assert b"[DONE]" not in pieces[-1]
            async with client(engine.port) as own:
                own.send(CHAT, SHORT)
                with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                    await own.head()
            assert (await ask(engine.port, CHAT, SHORT)).status == 200

    async def test_an_error_inside_a_stream(self) -> None:
        async with faulty() as (engine, admin):
            await switch(admin, "error_event", count=1)
            first = await ask(engine.port, CHAT, LONG)
            error, done = first.chunks
            assert error.startswith(b'data: {"error": {"message": "The engine is currently busy and cannot accept new ')
            assert error.endswith(b'", "type": "Service Unavailable", "param": null, "code": 503}}\n\n')
            assert done == b"data: [DONE]\n\n"
            await switch(admin, "error_event", after_tokens=2, count=2)
            middle = await ask(engine.port, CHAT, LONG)
            assert middle.events[-1]["error"]["code"] == 500
            assert len(middle.events) >= 2
            whole = await ask(engine.port, CHAT, SHORT)
            assert whole.status == 500
            await until(lambda: engine.core.idle)

    @pytest.mark.parametrize(
        ("body", "says"),
        [
            (b"[]", "JSON object"),
            (b"{", "unexpected"),
            ({"mode": "explode"}, "mode must be one of"),
            ({"mode": "cut", "what": 1}, "unknown: what"),
            ({"mode": "cut", "after_tokens": -1}, "after_tokens must be"),
            ({"mode": "cut", "count": True}, "count must be"),
            ({"mode": "hang", "count": 3}, "count means nothing"),
        ],
    )
    async def test_a_fault_that_makes_no_sense_is_refused(self, body: Any, says: str) -> None:
        async with faulty() as (engine, admin):
            answer = await ask(admin, "/fault", body)
            assert (answer.status, engine.faults.fault.mode) == (400, "none")
            assert says in answer.json()["error"]
            assert (await ask(admin, "/nothing")).status == 404

    async def test_state_tells_what_was_seen(self) -> None:
        async with faulty(max_num_seqs=2) as (engine, admin):
            await asyncio.gather(*[ask(engine.port, CHAT, SHORT) for _ in range(5)])
            state = (await ask(admin, "/state")).json()
        assert (state["running"], state["waiting"], state["requests_total"], state["max_concurrent_seen"]) == (
            0,
            0,
            5,
            5,
        )
        assert (state["max_running_seen"], state["generated_tokens"], state["aborted"]) == (2, 15, 0)
        assert 0 < state["max_kv_used_tokens_seen"] <= 2 * 16 * -(-2048 // 16)
        assert state["kv_used_tokens"] == 0
        assert state["fault"]["mode"] == "none"


async def test_keys_guard_v1_only() -> None:
    async with simulated(api_keys=("k1", "k2")) as engine, client(engine.port) as own:
        for headers in ("", "authorization: Bearer nope\r\n", "authorization: Basic k1\r\n"):
            answer = await own.ask("/v1/nothing", headers=headers)
            assert (answer.status, answer.json()) == (401, {"error": "Unauthorized"})
        assert (await own.ask("/v1/models", headers="authorization: bearer k2\r\n")).status == 200
        assert (await own.ask("/health")).status == 200


async def test_a_full_queue_is_503_and_counted() -> None:
    async with simulated(max_num_seqs=1, max_num_queued_reqs=2, speed=1.0) as engine:
        clients = [await Client.connect(engine.port) for _ in range(2)]
        for each in clients:
            each.send(CHAT, LONG)
            await each.head()
        answer = await ask(engine.port, CHAT, LONG)
        assert (answer.status, answer.json()["error"]["type"]) == (503, "Service Unavailable")
        assert engine.metrics.admission_rejections["max_num_queued_reqs"] == 1
        for each in clients:
            each.close()


@pytest.mark.parametrize("policy", ["priority", "fcfs"])
async def test_priority_is_honoured_only_where_it_was_asked_for(policy: str) -> None:
    async with simulated(max_num_seqs=1, priority_scheduling=policy == "priority") as engine:
        async with client(engine.port) as first:
            first.send(CHAT, LONG)
            await until(lambda: engine.core.running)
            order: list[str] = []

            async def one(name: str, headers: str, **fields: Any) -> None:
                await ask(engine.port, CHAT, SHORT | fields, headers=headers)
                order.append(name)

            tasks = []
            for count, (name, headers, fields) in enumerate(
                [
                    ("low", "", {"priority": 5}),
                    ("odd", "X-Vllm-Priority: x\r\n", {"priority": 1}),
                    ("high", "X-Vllm-Priority: -5\r\n", {"priority": 9}),
                ]
            ):
                tasks.append(asyncio.ensure_future(one(name, headers, **fields)))
                await until(lambda count=count: engine.core.waiting == count + 1)
        await asyncio.gather(*tasks)
    assert order == (["high", "odd", "low"] if policy == "priority" else ["low", "odd", "high"])


async def test_a_pooling_engine_embeds_scores_and_ranks_and_does_not_chat() -> None:
    async with simulated(pooling=True, speed=2.0) as engine, client(engine.port) as own:
        answer = (await own.ask("/v1/embeddings", {"input": ["the river", "the river bank", "42"]})).json()
        vectors = [row["embedding"] for row in answer["data"]]
        assert answer["usage"]["prompt_tokens"] == 6
        near, far = [sum(a * b for a, b in zip(vectors[0], other, strict=True)) for other in vectors[1:]]
        assert near > far
        packed = (await own.ask("/v1/embeddings", {"input": "the river", "encoding_format": "base64"})).json()
        assert isinstance(packed["data"][0]["embedding"], str)
        score = (await own.ask("/score", {"text_1": "river", "text_2": ["river", "sky"]})).json()
        assert score["data"][0]["score"] == pytest.approx(1.0)
        body = {"query": "river", "documents": ["sky", "river"], "top_n": 1}
        assert (await own.ask("/v1/rerank", body)).json()["results"][0]["index"] == 1
        pooled = await own.ask("/pooling", {"messages": HELLO})
        assert pooled.json()["data"][0]["object"] == "pooling"
        assert (await own.ask(CHAT, SHORT)).status == 404
        assert (await own.ask("/v1/embeddings", {"input": []})).status == 400
        assert (await own.ask("/v1/embeddings", {"input": "word " * 3000})).status == 400
        own.send("/v1/embeddings", {"input": [f"{number} more words " * 90 for number in range(8)]})
        await until(lambda: engine.core.running)
        own.close()
        await until(lambda: engine.aborted == 1)


async def test_tokenize_and_detokenize_are_each_others_inverse() -> None:
    async with simulated() as engine, client(engine.port) as own:
        text = "Where does the water go? 水車 99"
        tokens = (await own.ask("/tokenize", {"prompt": text, "return_token_strs": True})).json()
        assert "".join(tokens["token_strs"]) == text
        assert (await own.ask("/detokenize", {"tokens": tokens["tokens"]})).json() == {"prompt": text}
        chat = (await own.ask("/tokenize", {"messages": HELLO})).json()
        used = (await own.ask(CHAT, SHORT)).json()["usage"]["prompt_tokens"]
        assert chat["count"] == used
        assert (await own.ask("/tokenize", {"prompt": "x", "model": "nope"})).status == 404


@asynccontextmanager
async def process(*options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """`python -m workers.engines.simulator_cli`, with its ready line."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "workers.engines.simulator_cli", "--json", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        line = await asyncio.wait_for(child.stdout.readline(), 20)
        yield child, orjson.loads(line or b"{}")
    finally:
        if child.returncode is None:
            os.kill(child.pid, signal.SIGKILL)
        await child.wait()


async def ended(child: asyncio.subprocess.Process) -> tuple[int, bytes]:
    out, err = await asyncio.wait_for(child.communicate(), 10)
    assert child.returncode is not None
    return child.returncode, out + err


async def test_sigterm_finishes_streams_with_abort_and_exits_0() -> None:
    async with process("--id", "w1", "--admin-port", "0") as (child, ready):
        port = int(ready["url"].rsplit(":", 1)[1])
        assert (ready["event"], ready["id"], ready["pid"]) == ("ready", "w1", child.pid)
        assert (await ask(int(ready["admin"].rsplit(":", 1)[1]), "/state")).json()["running"] == 0
        async with client(port) as own, client(port) as whole:
            own.send(CHAT, LONG)
            whole.send(CHAT, LONG | {"stream": False})
            await own.head()
            await own.chunk()
            child.send_signal(signal.SIGTERM)
            last: list[bytes] = []
            while piece := await own.chunk():
                last.append(piece)
            answer: Answer = await whole.answer()
        assert last[-1] == b"data: [DONE]\n\n"
        assert orjson.loads(last[-2][6:])["choices"][0]["finish_reason"] == "abort"
        assert answer.json()["choices"][0]["finish_reason"] == "abort"
        code, out = await ended(child)
        assert (code, orjson.loads(out)) == (0, {"event": "stopped", "id": "w1"})


async def test_what_cannot_start_says_why() -> None:
    async with process("--kv-tokens", "1000") as (child, _):
        code, out = await ended(child)
        assert code == 2
        assert b"max_model_len 8192 needs more KV cache than kv_tokens 1000" in out
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with process("--port", str(taken.getsockname()[1])) as (child, _):
            code, out = await ended(child)
            assert code == 1
            assert b"cannot listen on 127.0.0.1:" in out
