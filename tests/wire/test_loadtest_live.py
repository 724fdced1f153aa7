"""`headrace loadtest replay` and `ramp` over real sockets: every way in which a request ends, and the commands."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_server import (
    ERROR_EVENT,
    STREAM_HEAD,
    WHOLE_STREAM,
    Call,
    FaultServer,
    Script,
    answers,
    chunked,
    closed_port,
    closes,
    event,
    hangs,
    http,
    resets,
    streams,
)
from plain_worker import plain_worker
from running_gateway import running, settings_for, until

from loadtest import live_client, live_target
from loadtest.live_client import Player, new_book
from loadtest.live_figures import Goal, Outcome, Record, Report
from loadtest.live_target import LiveError, Target, find_model, make_room, open_session
from loadtest.ramp import Ending, Range
from loadtest.replay import Climb, Lines, Replay, run_ramp, run_replay
from loadtest.traces import TraceRequest
from loadtest.workload import Workload

PATIENCE_S = 60.0
EASY = Goal(1e6, 1e6)  # whatever else the machine does
MODELS = http(200, b'{"object":"list","data":[{"id":"tiny"},{"id":"other"}]}')


def requests(count: int, **more: Any) -> list[TraceRequest]:
    return [TraceRequest(index / 1000, 40 + index, 5, **more) for index in range(count)]


@asynccontextmanager
async def player(url: str, **more: Any) -> AsyncIterator[Player]:
    clock = more.pop("clock", None)
    async with open_session() as session:
        target = Target(url, model="tiny", timeout_s=PATIENCE_S, **more)
        yield Player(session, target, new_book(0), "s", *([clock] if clock else []))


async def played(url: str, count: int = 1, *, stop: asyncio.Event | None = None, **more: Any) -> Report:
    ended = more.pop("ended", lambda _: None)
    async with player(url, **more) as one, asyncio.timeout(PATIENCE_S):
        found = await one.play(requests(count), EASY, 1.0, stop=stop or asyncio.Event(), ended=ended)
    assert found.summed
    assert found.all.requests == count
    return found


def breaks(ending: Callable[[Call], None]) -> Script:
    """One event, and then this instead of the rest."""

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD + chunked(event("a")))
        ending(call)

    return script


def error(status: int, code: str, kind: str = "server_error") -> Script:
    return answers(http(status, json.dumps({"error": {"message": "m", "type": kind, "code": code}}).encode()))


ENDINGS: dict[str, tuple[Script, Outcome, str]] = {
    "whole": (streams(), Outcome.ANSWERED, ""),
    "in bytes": (streams(bytewise=True), Outcome.ANSWERED, ""),
    "429": (error(429, "queue_full", "rate_limit_error"), Outcome.REFUSED, "queue_full"),
    "400": (error(400, "context_length_exceeded"), Outcome.REFUSED, "context_length_exceeded"),
    "401 of an engine": (answers(http(401, b'{"error":"Unauthorized"}')), Outcome.REFUSED, "http_401"),
    "503": (error(503, "no_healthy_worker"), Outcome.REFUSED, "no_healthy_worker"),
    "500": (answers(http(500, b"oops", content_type="text/plain")), Outcome.FAILED, "http_500"),
    "502": (error(502, "upstream_error"), Outcome.FAILED, "upstream_error"),
    "504": (error(504, "ttft_timeout", "timeout_error"), Outcome.TIMED_OUT, "ttft_timeout"),
    "redirect": (answers(http(307, b"", "location: /elsewhere")), Outcome.FAILED, "http_307"),
    "no stream": (answers(http(200, b"{}")), Outcome.FAILED, "no_stream"),
    "broken": (breaks(Call.reset), Outcome.FAILED, "broken_stream"),
    "cut": (breaks(Call.close), Outcome.FAILED, "broken_stream"),
    "no end": (streams(WHOLE_STREAM[:-1]), Outcome.FAILED, "broken_stream"),
    "error within": (streams([event("a"), ERROR_EVENT]), Outcome.FAILED, "error_event"),
    "not json": (streams([b"data: {\n\n"]), Outcome.FAILED, "not_json"),
    "reset": (resets(), Outcome.FAILED, "reset"),
    "closed": (closes(), Outcome.FAILED, "disconnected"),
}


@pytest.mark.parametrize("name", ENDINGS)
async def test_each_ending_is_one_outcome(name: str) -> None:
    script, outcome, code = ENDINGS[name]
    async with FaultServer(script) as server:
        found = await played(server.url, 3)
    assert found.all.outcomes[outcome] == 3, found.troubles
    assert [(one.outcome, one.code) for one in found.troubles] == ([] if not code else [(outcome, code)])
    assert not found.gone


async def test_nobody_there() -> None:
    found = await played(f"http://127.0.0.1:{closed_port()}", 2)
    assert [(one.code, one.count, one.message) for one in found.troubles] == [("connect", 2, "Connection refused")]
    assert found.gone


async def test_an_answer_that_takes_too_long() -> None:
    async with FaultServer(hangs()) as server, open_session() as session:
        one = Player(session, Target(server.url, model="tiny", timeout_s=0.05), new_book(0), "s")
        found = await one.play(requests(2), EASY, 1.0, stop=asyncio.Event())
    assert [(one.outcome, one.code, one.count) for one in found.troubles] == [(Outcome.TIMED_OUT, "client_timeout", 2)]
    assert "--timeout" in found.troubles[0].message


async def test_no_more_are_in_flight_than_may_be_and_the_rest_is_counted() -> None:
    stop, ended = asyncio.Event(), list[Record]()

    def one_more(record: Record) -> None:
        ended.append(record)
        if len(ended) == 3:
            stop.set()

    async with FaultServer(hangs()) as server:
        found = await played(server.url, 5, stop=stop, ended=one_more, max_in_flight=2)
    assert found.all.outcomes[Outcome.NOT_SENT] == 3
    assert found.all.outcomes[Outcome.CANCELLED] == 2
    assert found.peak_in_flight == 2
    assert {one.code for one in found.troubles} >= {"max_in_flight"}
    assert found.interrupted
    assert len(ended) == 5


async def test_prompts_in_flight_take_no_more_memory_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_client, "BYTES_IN_FLIGHT", 1000)
    stop = asyncio.Event()
    async with FaultServer(hangs()) as server:
        found = await played(server.url, 9, stop=stop, ended=lambda _: stop.set())
    assert [one.code for one in found.troubles if one.outcome is Outcome.NOT_SENT] == ["bytes_in_flight"]
    assert 1 < found.peak_in_flight < 4


async def test_a_run_that_is_ended_says_what_became_of_each() -> None:
    stop = asyncio.Event()
    late = [*requests(2), TraceRequest(3600.0, 10, 1)]
    async with FaultServer(hangs()) as server, player(server.url) as one:
        playing = asyncio.create_task(one.play(late, EASY, 3600.0, stop=stop))
        await server.until(lambda: len(server.calls) == 2, PATIENCE_S)
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            found = await playing
        await server.until(lambda: server.open_connections == 0, PATIENCE_S)
    assert found.all.outcomes[Outcome.CANCELLED] == 3
    assert {(one.code, one.count) for one in found.troubles} == {("in_flight", 2), ("before_sending", 1)}


async def test_a_client_that_is_late_is_told() -> None:
    ticks = itertools.count(step=0.2)  # every look at the clock finds it later
    async with FaultServer(streams()) as server:
        found = await played(server.url, 6, clock=lambda: next(ticks))
    assert not found.clock.kept_up
    assert found.clock.sent_late >= 5


async def test_what_a_request_says() -> None:
    async with FaultServer(streams()) as server:
        target = Target(server.url, "hr_x", "tiny", "batch", PATIENCE_S)
        async with open_session() as session:
            one = Player(session, target, new_book(0), "s")
            asked = [TraceRequest(0.0, 900, 17, session="ö"), TraceRequest(0.001, 900, 3, hashes=(1, 2))]
            await one.play(asked, EASY, 1.0, stop=asyncio.Event())
            plain = Player(session, replace(target, ignore_eos=False), new_book(0), "s")
            await plain.play(requests(1), EASY, 1.0, stop=asyncio.Event())
    first, second, third = sorted(server.requests, key=lambda one: -json.loads(one.body)["max_tokens"])[:3]
    body = json.loads(first.body)
    assert (body["model"], body["max_tokens"], body["stream"], body["ignore_eos"]) == ("tiny", 17, True, True)
    assert body["stream_options"] == {"include_usage": True}
    assert first.values(b"authorization") == [b"Bearer hr_x"]
    assert first.values(b"x-headrace-priority") == [b"batch"]
    assert first.values(b"x-session-id") == [b"s-?"]
    assert "ignore_eos" not in json.loads(second.body)
    assert third.values(b"x-session-id") == []
    assert "hr_x" not in repr(target)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            answers(http(401, b'{"error":{"message":"A key is needed."}}')),
            "401 A key is needed. .give a key with --key",
        ),
        (answers(http(404, b"{}")), "404, so that is no data listener"),
        (answers(http(500, b"")), "names no model .status 500"),
        (answers(http(200, b'{"data":[]}')), "names no model .an empty list"),
        (answers(http(200, b"[1]")), "names no model"),
        (closes(), "nobody answers"),
    ],
)
async def test_what_keeps_a_run_from_beginning(script: Script, words: str) -> None:
    async with FaultServer(script) as server, open_session() as session:
        with pytest.raises(LiveError, match=words):
            await find_model(session, Target(server.url))


async def test_a_server_that_does_not_answer_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_target, "PREFLIGHT_S", 0.05)
    async with FaultServer(hangs()) as server, open_session() as session:
        with pytest.raises(LiveError, match="no answer"):
            await find_model(session, Target(server.url))


async def test_ended_while_it_looks_for_a_server() -> None:
    stop = asyncio.Event()
    async with FaultServer(hangs()) as server, asyncio.timeout(PATIENCE_S):
        running_ = asyncio.create_task(run_ramp(climb(server.url), stop=stop))
        await server.call(0, PATIENCE_S)
        stop.set()
        with pytest.raises(LiveError, match="ended before anything was sent"):
            await running_


async def test_the_first_model_is_asked_for_unless_another_is_named() -> None:
    async with FaultServer(answers(MODELS)) as server, open_session() as session:
        assert await find_model(session, Target(server.url)) == "tiny"
        assert await find_model(session, Target(server.url, model="mine")) == "mine"


def test_more_connections_than_files_may_be_open() -> None:
    make_room(1)
    with pytest.raises(LiveError, match="--max-in-flight 1000000000: needs 1000000064 open files"):
        make_room(10**9)


def test_a_disk_that_is_full_ends_the_file_and_not_the_run() -> None:
    lines = Lines(Path("/dev/full"))
    for index in range(1000):
        lines.add(Record(index, 0.0, 1, 1))
    lines.close()
    assert lines.trouble == "No space left on device"


TRACE = Workload("t", tuple(TraceRequest(float(at), 20 + at, 2) for at in range(11)))


def climb(url: str, **more: Any) -> Climb:
    """Steps of 4, 8, 16 … requests."""
    usual: dict[str, Any] = {
        "target": Target(url, timeout_s=PATIENCE_S),
        "trace": TRACE,
        "between": Range(80.0, 1280.0, 2.0, 0),
        "step_s": 0.05,
        "skip_s": 0.0,
        "goodput": 0.99,
        "goal": EASY,
        "seed": 1,
    }
    return Climb(**{**usual, **more})


async def test_a_ramp_goes_up_until_too_much_is_refused() -> None:
    """Twelve requests are answered, then none: the third step is not kept. The clock stands still: nothing is late."""
    server = FaultServer(error(429, "queue_full"), [answers(MODELS), *[streams()] * 12])
    steps: list[float] = []
    async with server:
        found = await run_ramp(
            climb(server.url), stop=asyncio.Event(), ended=lambda step: steps.append(step.per_s), clock=lambda: 0.0
        )
    assert steps == [80.0, 160.0, 320.0]
    assert (found.per_s, found.first_not_kept, found.ending) == (160.0, 320.0, Ending.GOODPUT)
    prompts = [json.loads(one.body)["messages"][0]["content"] for one in server.requests if one.body]
    assert len(set(prompts)) == len(prompts)  # no step finds its prompts in a cache


async def test_a_ramp_ends_with_what_it_has() -> None:
    stop = asyncio.Event()
    async with FaultServer(streams(), [answers(MODELS)]) as server:
        found = await run_ramp(climb(server.url), stop=stop, ended=lambda _: stop.set(), clock=lambda: 0.0)
        assert (len(found.steps), found.ending, found.per_s) == (1, Ending.INTERRUPTED, 80.0)


async def test_a_ramp_ends_when_the_gateway_goes() -> None:
    server = FaultServer(streams(), [answers(MODELS)])
    async with server, asyncio.timeout(PATIENCE_S):

        def begin(_: Target) -> None:
            server._server.close()
            for connection in server.connections:
                connection.transport.abort()

        found = await run_ramp(climb(server.url), stop=asyncio.Event(), begin=begin)
    assert (len(found.steps), found.ending, found.per_s) == (1, Ending.GONE, None)


async def test_through_a_gateway_it_is_estimated_and_answered_as_recorded(tmp_path: Path) -> None:
    async with plain_worker() as worker, running(settings_for(tmp_path, [worker])) as gateway:
        asked = [TraceRequest(0.0, 1500, 9), TraceRequest(0.001, 300, 9)]
        replay = Replay(Target(gateway.data, timeout_s=PATIENCE_S), asked, 1.0, EASY, 1)
        found = await run_replay(replay, stop=asyncio.Event())
        assert found.answered == 2, found.troubles
        assert (found.all.tokens_in, found.all.tokens_out) == (14, 4)  # what the worker counts
        assert found.all.goodput == 1.0
        assert {name: group.requests for name, group in found.pools.items()} == {"short-chat": 2}
        assert list(found.classes) == ["standard"]
        await until(lambda: len(gateway.lines("request")) == 2, PATIENCE_S)
        estimates = sorted(line["prompt_estimate"] for line in gateway.lines("request"))
        assert estimates == pytest.approx([300, 1500], rel=0.03)
