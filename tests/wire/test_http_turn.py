"""One turn of the loop: what came together is done step by step, and what fails or leaves in it harms nobody else."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from data_plane import STREAM, Plane, plane, request, until
from fault_server import FaultServer, answers, http, ok, streams

from gateway import compiled
from gateway.http.sweep import NEVER
from gateway.http.turn import Turn
from gateway.records import Terminal
from gateway.scheduling.model import OutcomeKind

COUNT = 5


@contextlib.asynccontextmanager
async def clients(p: Plane, count: int):
    """So many accepted connections; what is sent on them before the next `await` is read in one turn."""
    async with contextlib.AsyncExitStack() as stack:
        found = [await stack.enter_async_context(p.client()) for _ in range(count)]
        while p.server.stats().connections < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        yield found


def watched(p: Plane, steps: list[str]) -> None:
    """Note each step that a request takes."""
    admit, submit, settle, finished = (
        p.gate.admit, p.dispatcher.submit, p.dispatcher.settle, p.notes.finished,
    )  # fmt: skip

    def noted(name, call):
        def noting(*args, **more):
            steps.append(name)
            return call(*args, **more)

        return noting

    p.gate.admit = noted("judge", admit)
    p.dispatcher.submit = noted("place", submit)
    p.dispatcher.settle = noted("settle", settle)
    p.notes.finished = noted("tell", finished)


async def test_requests_that_came_together_are_judged_and_then_placed():
    steps: list[str] = []
    async with FaultServer(ok()) as engine, plane(engine) as p, clients(p, COUNT) as some:
        watched(p, steps)
        for client in some:
            client.writer.write(request())
        told = [await client.answer() for client in some]
    assert [answer.status for answer in told] == [200] * COUNT
    assert steps[: 2 * COUNT] == ["judge"] * COUNT + ["place"] * COUNT
    assert sorted(steps[2 * COUNT :]) == ["settle"] * COUNT + ["tell"] * COUNT
    assert p.dispatcher.outcomes == [("w0", OutcomeKind.OK)] * COUNT


async def test_a_step_that_fails_ends_that_request_and_no_other():
    async with FaultServer(ok()) as engine, plane(engine) as p, clients(p, 3) as some:
        submit, calls = p.dispatcher.submit, []

        def failing(request, sink):
            calls.append(request)
            if len(calls) == 2:
                raise RuntimeError("the scheduler is broken")
            return submit(request, sink)

        p.dispatcher.submit = failing
        for client in some:
            client.writer.write(request())
        assert (await some[0].answer()).status == 200
        assert (await some[2].answer()).status == 200
        assert await some[1].closed() == b""
        assert [str(error) for error in p.errors] == ["the scheduler is broken"]
        records = await p.notes.until(3)
        ends = sorted((record.outcome, record.status, record.reason) for record in records)
        assert ends == [(Terminal.INTERNAL, 500, "internal"), *[(Terminal.OK, 200, "")] * 2]
        assert (await some[0].post()).status == 200, "the connection goes on"
        p.errors.clear()


async def test_telemetry_that_fails_costs_no_answer():
    async with FaultServer(ok()) as engine, plane(engine) as p, clients(p, 2) as some:
        finished, calls = p.notes.finished, []

        def failing(*told):
            calls.append(told)
            if len(calls) == 1:
                raise RuntimeError("the disk is full")
            finished(*told)

        p.notes.finished = failing
        for client in some:
            client.writer.write(request())
        assert [(await client.answer()).status for client in some] == [200, 200]
        assert (await some[0].post()).status == 200
        assert [str(error) for error in p.errors] == ["the disk is full"]
        p.errors.clear()


@pytest.mark.parametrize("part", ["finished", "attempt"])
async def test_telemetry_that_fails_outside_of_a_turn_costs_no_answer_and_no_place(part):
    """A refusal and a stream end where their last bytes are read, not in a turn."""
    scripts = [answers(http(400, b"{}")), streams(), ok()]
    async with FaultServer(ok(), scripts) as engine, plane(engine) as p, clients(p, 1) as (client,):

        def failing(*told):
            raise RuntimeError("the disk is full")

        setattr(p.notes, part, failing)
        client.writer.write(request() + request(STREAM) + request())
        assert [(await client.answer()).status for _ in range(3)] == [400, 200, 200]
        await until(lambda: len(p.errors) == 3)
        assert [kind for _, kind in p.dispatcher.outcomes] == [OutcomeKind.CLIENT_ERROR, *[OutcomeKind.OK] * 2]
        assert not p.dispatcher.held
        p.errors.clear()


@pytest.mark.parametrize("how", ["leaves", "is killed"])
async def test_a_client_that_is_gone_before_its_turn_is_counted_once_and_asks_for_nothing(how):
    async with FaultServer(ok()) as engine, plane(engine) as p, clients(p, 1):
        (connection,) = p.server._connections
        connection.data_received(request())
        if how == "leaves":
            connection.eof_received()
        else:
            connection.kill()
        (record,) = await p.notes.until(1)
        assert (record.outcome, record.status, record.reason) == (Terminal.CANCELLED, 499, "disconnected")
        assert not p.dispatcher.outcomes
        assert not engine.calls
        connection.kill()


async def test_a_refusal_to_a_client_that_is_gone_is_counted():
    async with FaultServer(ok()) as engine, plane(engine) as p, clients(p, 2):
        for connection, path in zip(p.server._connections, ("/refused", "/livez"), strict=True):
            connection.data_received(request(path=path))
            connection.kill()
        (record,) = await p.notes.until(1)
        assert (record.outcome, record.status) == (Terminal.CLIENT_ERROR, 404)


@pytest.mark.skipif(compiled.in_use(), reason="nothing can be put into a compiled class")
async def test_an_answer_that_is_there_when_its_client_leaves_gives_the_place_back_once(monkeypatch):
    whole = Turn.whole

    def leaving(turn, attempt):
        whole(turn, attempt)
        attempt.exchange.connection.kill()

    monkeypatch.setattr(Turn, "whole", leaving)
    async with FaultServer(ok()) as engine, plane(engine) as p, clients(p, 1) as (client,):
        client.writer.write(request())
        (record,) = await p.notes.until(1)
        assert (record.outcome, record.reason) == (Terminal.CANCELLED, "shutting_down")
        assert p.dispatcher.outcomes == [("w0", OutcomeKind.CLIENT_GONE)]
        assert not p.errors


@pytest.mark.skipif(compiled.in_use(), reason="nothing can be put into a compiled class")
async def test_a_whole_answer_that_waits_for_its_turn_is_not_late(monkeypatch):
    whole, looked = Turn.whole, []

    def looking(turn, attempt):
        whole(turn, attempt)
        looked.append(attempt.check(1e12))

    monkeypatch.setattr(Turn, "whole", looking)
    async with FaultServer(ok()) as engine, plane(engine) as p, clients(p, 1) as (client,):
        assert (await client.post()).status == 200
        assert looked == [NEVER]
        assert p.dispatcher.outcomes == [("w0", OutcomeKind.OK)]


async def test_what_was_read_before_the_last_cut_is_told_that_the_process_ends():
    hold = asyncio.Event()

    async def never(call):
        await hold.wait()

    async with FaultServer(never) as engine, plane(engine) as p, clients(p, 1) as (client,):
        (connection,) = p.server._connections
        task = asyncio.ensure_future(p.server.drain(0.0))
        connection.data_received(request())
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        await task
        hold.set()


async def test_early_requests_are_answered_in_order_within_one_turn():
    async with FaultServer(ok()) as engine, plane(engine) as p, clients(p, 1) as (client,):
        steps: list[str] = []
        watched(p, steps)
        client.writer.write(b"".join(request(path="/livez") for _ in range(4)) + request())
        statuses = [(await client.answer()).status for _ in range(5)]
        assert statuses == [200] * 5
        assert steps[:6] == ["judge"] * 5 + ["place"]
