"""Each promise of `headrace verify` under load: kept, and broken in every way that its check must see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from loadtest.verify_client import Fate, Told, code_of, error_in, judge_body
from loadtest.verify_figures import SHOWN, Figure, every, none_of
from loadtest.verify_judge import (
    Deadlines,
    Departures,
    Limits,
    Order,
    Outcomes,
    Pools,
    Streams,
    judge_deadlines,
    judge_departures,
    judge_limits,
    judge_order,
    judge_outcomes,
    judge_pools,
    judge_streams,
)

STREAM = b'data: {"choices": []}\n\ndata: [DONE]\n\n'


def told(fate: Fate = Fate.ANSWERED, **more: Any) -> Told:
    return Told(**{"sent_s": 0.0, "fate": fate, "status": 200, "body": STREAM, "ended_s": 1.0, **more})


def at(pool: str, worker: str) -> Told:
    return told(headers={"x-headrace-pool": pool, "x-headrace-worker": worker})


def missed(figures: list[Figure]) -> list[int]:
    return [number for number, figure in enumerate(figures) if not figure.ok]


MIX = [told(), told(), told(Fate.LEFT), told(Fate.REFUSED, status=400)]
OUTCOMES = Outcomes(MIX, {"ok": 2, "cancelled": 1, "client_error": 1}, attempts=3, generations=3, held=0)
LIMITS = Limits(4, {"short-1": 4, "short-2": 3}, 0.9, kv_at_once=5, places=8, preemptions=0, told=[told()])
POOL_OF = {"s": "short-chat", "l": "long-context"}
POOLS = Pools([at("short-chat", "s")], [at("long-context", "l")], POOL_OF)
STREAMS = Streams([told(), told(body=b"data: x\n\n" + STREAM)], [b"data: x\n\n" + STREAM, STREAM, b"more"])
ORDER = Order(["batch", "interactive", "interactive", "batch"], [told()])
OVER = told(Fate.REFUSED, status=504, code="deadline_exceeded", ended_s=2.05)
TIRED = told(Fate.REFUSED, status=429, code="queue_timeout", ended_s=1.0)
DEADLINES = Deadlines([(OVER, 2.0)], [(TIRED, 1.0)], own_late_s=0.01)
DEPARTURES = Departures([0.01, 0.02, 4.0], [0.004, 0.004], [0.01], kept=0)

JUDGES: dict[type, Callable[[Any], list[Figure]]] = {
    Outcomes: judge_outcomes,
    Limits: judge_limits,
    Pools: judge_pools,
    Streams: judge_streams,
    Order: judge_order,
    Deadlines: judge_deadlines,
    Departures: judge_departures,
}


@pytest.mark.parametrize(
    "facts", [OUTCOMES, LIMITS, POOLS, STREAMS, ORDER, DEADLINES, DEPARTURES], ids=lambda facts: type(facts).__name__
)
def test_what_is_kept_is_seen_as_kept(facts: Any) -> None:
    assert missed(JUDGES[type(facts)](facts)) == []


@pytest.mark.parametrize(
    ("why", "facts", "figures"),
    [
        ("one never ended", replace(OUTCOMES, told=[*MIX[1:], told(Fate.SILENT)]), [0, 2]),
        ("one broke off without a word", replace(OUTCOMES, told=[*MIX[1:], told(Fate.BROKEN)]), [0, 2]),
        ("nothing was sent", Outcomes([], {}, 0, 0, 0), [0]),
        ("one is counted twice", replace(OUTCOMES, gateway={"ok": 3, "cancelled": 1, "client_error": 1}), [1, 2]),
        ("one is counted as another", replace(OUTCOMES, gateway={"ok": 3, "client_error": 1}), [2]),
        ("an engine got one twice", replace(OUTCOMES, generations=4), [3]),
        ("a lease is still booked", replace(OUTCOMES, held=0.5), [4]),
        ("an engine saw one more than its limit", replace(LIMITS, most={"short-1": 5}), [0]),
        ("the limit was never reached", replace(LIMITS, most={"short-1": 3}), [0]),
        ("nobody saw anything", replace(LIMITS, most={}), [0]),
        ("more tokens than the cache has", replace(LIMITS, kv_share=1.01), [1]),
        ("places ran out before the cache", replace(LIMITS, kv_at_once=8), [1]),
        ("an engine had to preempt", replace(LIMITS, preemptions=1), [1, 2]),
        ("one was not answered", replace(LIMITS, told=[told(Fate.REFUSED)]), [3]),
        ("a short request at a long worker", replace(POOLS, short=[at("short-chat", "l")]), [0]),
        ("a long request in the short pool", replace(POOLS, long=[at("short-chat", "s")]), [1]),
        ("a long request that was refused", replace(POOLS, long=[told(Fate.REFUSED)]), [1]),
        ("none was sent", replace(POOLS, short=[]), [0]),
        ("a byte is missing", replace(STREAMS, told=[told(body=STREAM[1:])]), [0]),
        ("two clients read one answer", replace(STREAMS, told=[told(), told()]), [0]),
        ("no [DONE]", replace(STREAMS, told=[told(body=b"more")]), [1]),
        ("batch first", replace(ORDER, begun=["batch", "batch", "interactive", "batch"]), [0]),
        ("nobody interactive was begun", replace(ORDER, begun=["batch"]), [0]),
        ("no batch request was left behind", replace(ORDER, begun=["batch", "interactive"]), [0]),
        ("one of them was lost", replace(ORDER, told=[told(Fate.BROKEN)]), [1]),
        ("another code", replace(DEADLINES, deadline=[(replace(OVER, code="ttft_timeout"), 2.0)]), [0]),
        ("answered after its time", replace(DEADLINES, deadline=[(told(ended_s=2.0), 2.0)]), [0]),
        ("waited for ever", replace(DEADLINES, queued=[(told(Fate.SILENT, status=0, ended_s=30.0), 1.0)]), [1, 2]),
        ("told too late", replace(DEADLINES, deadline=[(replace(OVER, ended_s=2.2), 2.0)]), [2]),
        ("a place stays taken for a second", replace(DEPARTURES, through=[1.0, 1.0, 0.01]), [0]),
        ("a queue's place stays taken", replace(DEPARTURES, waiting=[5.0]), [1]),
        ("nobody left", replace(DEPARTURES, through=[], waiting=[]), [0, 1]),
        ("nothing to compare with", replace(DEPARTURES, alone=[]), [0, 1]),
        ("work is still booked", replace(DEPARTURES, kept=1.0), [2]),
    ],
)
def test_what_is_broken_falls_short(why: str, facts: Any, figures: list[int]) -> None:
    assert missed(JUDGES[type(facts)](facts)) == figures, why


def test_a_machine_that_is_late_itself_is_told_apart_from_a_gateway_that_is() -> None:
    late = replace(DEADLINES, deadline=[(replace(OVER, ended_s=2.4), 2.0)], own_late_s=0.35)
    assert missed(judge_deadlines(late)) == []
    assert judge_deadlines(late)[2].target.startswith("<= 0.45: ")
    slow = replace(DEPARTURES, through=[0.6, 0.6], alone=[0.55, 0.7], waiting=[0.5])
    assert missed(judge_departures(slow)) == []


@pytest.mark.parametrize(
    ("status", "body", "whole", "streamed", "fate"),
    [
        (200, STREAM, True, True, Fate.ANSWERED),
        (200, b"data: [DONE]\n\n", True, True, Fate.ANSWERED),
        (200, STREAM, False, True, Fate.BROKEN),
        (200, b'data: {"choices": []}\n\n', True, True, Fate.BROKEN),
        (200, b'data: {"a": 1}\n\ndata: {"error": {"code": "upstream_reset"}}\n\n', False, True, Fate.TOLD),
        (200, b'data: {"error": {"code": "x"}}\n\ndata: [DONE]\n\n', True, True, Fate.BROKEN),
        (200, b'{"id": "1"}', True, False, Fate.ANSWERED),
        (200, b'{"id": "1"', True, False, Fate.BROKEN),
        (200, b'{"id": "1"}', False, False, Fate.BROKEN),
        (429, b'{"error": {"code": "queue_full"}}', True, True, Fate.REFUSED),
        (503, b'{"err', False, True, Fate.BROKEN),
    ],
)
def test_the_fate_of_an_answer(status: int, body: bytes, whole: bool, streamed: bool, fate: Fate) -> None:
    one = Told(0.0, status=status, body=body)
    assert judge_body(one, whole=whole, streamed=streamed) is fate
    assert one.code == ("upstream_reset" if fate is Fate.TOLD else "")


def test_codes_and_error_events() -> None:
    assert code_of(b'{"error": {"code": "shed"}}') == "shed"
    assert [code_of(body) for body in (b"", b"[]", b'{"error": ', b'"error"')] == [""] * 4
    assert error_in(b'data: {"error": {"code": 1}}\n') == {"code": 1}
    assert error_in(b'data: {"text": "\\"error\\""}\ndata: {"error"\ndata: {"error": "x"}\n') is None


def test_what_headers_say() -> None:
    one = told(headers={"x-headrace-revision": "7", "x-headrace-attempts": "2"})
    assert (one.revision, one.attempts, one.pool, one.worker) == (7, 2, "", "")
    assert (told().revision, told(headers={"x-headrace-attempts": "many"}).attempts) == (0, 0)


def test_a_figure_names_some_of_what_went_wrong() -> None:
    assert every("x", 2, 2) == Figure("x", 2, "all 2", True)
    assert every("x", 0, 0).ok is False
    few = every("x", 1, 6, ["a", "b"])
    assert (few.target, few.ok) == ("all 6; not a; b", False)
    assert every("x", 1, 6, list("abcde")).target == f"all 6; not {'; '.join('abc'[:SHOWN])}; and more"
    assert (none_of("x", 0).ok, none_of("x", 0.1).ok) == (True, False)
