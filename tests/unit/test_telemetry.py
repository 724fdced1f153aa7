"""The data plane's telemetry: every part hears of a request's end, and what requests share is bounded."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.events import Events
from gateway.history import History
from gateway.learning import Learning
from gateway.log import Log, open_log, request_fields
from gateway.metrics import Metrics
from gateway.policy_draft import Draft
from gateway.quota import Quota
from gateway.recent import Recent
from gateway.records import RequestRecord, Terminal
from gateway.scheduling.model import Request
from gateway.telemetry import COMMON_MAX, Telemetry
from gateway.traffic import Traffic
from gateway.trials import Mode, Trials
from policies.document import Policy, parse_policy
from policies.revisions import first_revision

BASE = first_revision(Policy(), "{}", 1.0)


class Told:
    """Keeps who ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def finished(self, record: RequestRecord) -> None:
        self.ended.append(record.request_id)


class Plane:
    """Telemetry and all that it tells."""

    def __init__(self, log: Log | None = None, stories: Told | None = None) -> None:
        self.metrics, self.recent, self.learning = Metrics(), Recent(), Learning()
        self.metrics.adopt(Policy())
        self.quota = Quota(Policy().tenant, lambda: None)
        self.history, self.traffic, self.events = History(), Traffic(), Events()
        self.trials = Trials(None, "f", "me", now=lambda: 9.0, held=lambda: BASE, on_end=lambda trial, why: None)
        control: Any = SimpleNamespace(
            history=self.history, traffic=self.traffic, events=self.events, trials=self.trials, stories=stories
        )
        self.telemetry = Telemetry(
            self.metrics, log or Log(None, None), self.recent, self.learning, self.quota, control
        )

    def counted(self, name: str) -> float:
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name
        )


def record(**changes: Any) -> RequestRecord:
    usual = {
        "tenant": "acme", "class_name": "standard", "pool": "short-chat", "endpoint": "chat", "model": "m",
        "outcome": Terminal.OK, "attempts": 1, "prompt_tokens": 10, "output_tokens": 5, "estimate_raw": 9,
    }  # fmt: skip
    return RequestRecord("r1", "POST", "/v1/chat/completions", "p", **{**usual, **changes})


DIFFERENCES = (
    {"status": 500}, {"outcome": Terminal.TIMEOUT}, {"revision": 2}, {"stream": True}, {"tenant": "other"},
    {"key_id": "k"}, {"class_name": "batch"}, {"pool": "long-context"}, {"worker": "w2"}, {"endpoint": "embeddings"},
    {"model": "n"}, {"reason": "cut"}, {"why": "class by header"},
)  # fmt: skip


@pytest.mark.parametrize("other", DIFFERENCES, ids=str)
def test_what_requests_share_is_never_taken_from_another_kind(tmp_path: Path, other: dict[str, Any]) -> None:
    log = open_log(str(tmp_path / "access"), "none")
    plane = Plane(log)
    for each in (record(), record(**other), record(), record(**other), record(**other)):
        plane.telemetry.finished(each, REQUEST)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "access").read_text().splitlines()]
    usual, another = request_fields(record(), 0.0), request_fields(record(**other), 0.0)
    for line, fields in zip(lines, (usual, another, usual, another, another), strict=True):
        assert {**line, "time": 0.0} == {**fields, "time": 0.0}


def test_attempts_count_under_their_own_labels() -> None:
    plane = Plane()
    for worker in ("w1", "w2"):
        plane.metrics.know_worker(worker)
    told = [("short-chat", "w1", "ok"), ("short-chat", "w1", "reset"), ("long-context", "w1", "ok")]
    told = [*told, ("short-chat", "w2", "ok"), *told]
    for each in told:
        plane.telemetry.attempt(*each)
    [family] = [one for one in plane.metrics.registry.collect() if one.name == "headrace_attempts"]
    counted = {
        (one.labels["pool"], one.labels["worker"], one.labels["result"]): one.value
        for one in family.samples
        if one.name.endswith("_total")
    }
    assert counted == dict(Counter(told))


REQUEST = Request("r1", "acme", 0, "m", ("short-chat",), 10, None)


async def test_every_part_hears_of_an_end(tmp_path: Path) -> None:
    log = open_log(str(tmp_path / "access"), "none")
    stories = Told()
    plane = Plane(log, stories)
    trial = await plane.trials.start(Mode.CANARY, 0.5, Draft(parse_policy("{}"), "{}", "ann"), BASE)
    assert trial is not None
    listener = plane.events.listen()
    plane.quota.take("r1", "acme", 500, 0.0)
    plane.telemetry.attempt("short-chat", "w", "ok")
    for each in (record(revision=1), record(stream=True, revision=2), record(outcome=Terminal.CANCELLED)):
        plane.telemetry.finished(each, REQUEST)
    plane.telemetry.finished(record(class_name="", pool="", outcome=Terminal.CLIENT_ERROR))
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "access").read_bytes().splitlines()]
    assert [line["outcome"] for line in lines] == ["ok", "ok", "cancelled", "client_error"]
    assert plane.counted("headrace_requests_total") == 4
    assert plane.counted("headrace_disconnects_total") == 1
    assert len(plane.traffic) == 3, "the last one was never let in"
    assert plane.learning.learned == 4
    assert sum(step[1]["standard"].requests for step in plane.history._steps) == 3
    assert len(plane.recent) == 1
    assert stories.ended == ["r1"] * 4
    assert (trial.counts.tried.requests, trial.counts.rest.requests) == (1, 1)
    assert len(listener.take()[0]) == 4
    assert not plane.quota.owed


def test_the_same_names_count_elsewhere_under_another_policy() -> None:
    plane = Plane()
    plane.telemetry.finished(record(pool="new-pool"))
    assert len(plane.telemetry._common) == 1
    policy = Policy()
    plane.metrics.adopt(policy.model_copy(update={"pools": {**policy.pools, "new-pool": policy.pools["short-chat"]}}))
    plane.telemetry.finished(record(pool="new-pool"))
    pools = {
        sample.labels["pool"]
        for family in plane.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "headrace_requests_total"
    }
    assert pools == {"other", "new-pool"}
    assert len(plane.telemetry._common) == 1


def test_what_requests_have_in_common_is_bounded() -> None:
    plane = Plane()
    for number in range(COMMON_MAX + 10):
        plane.telemetry.finished(record(worker=f"w{number}"))
    assert len(plane.telemetry._common) <= COMMON_MAX
    assert len(plane.telemetry._latest) <= COMMON_MAX
    assert plane.counted("headrace_requests_total") == COMMON_MAX + 10


def test_gaps_and_first_tokens_are_for_the_history() -> None:
    plane = Plane()
    plane.telemetry.first_token(record(ttft_s=0.25))
    plane.telemetry.first_token(record())
    plane.telemetry.itl("short-chat", "standard", 0.02)
    (step,) = plane.history._steps
    assert step[1]["standard"].view()["ttft_p50_s"] == pytest.approx(0.25, rel=0.03)
    assert step[1]["standard"].view()["itl_p50_s"] == pytest.approx(0.02, rel=0.03)
    assert plane.counted("headrace_itl_seconds_count") == 1
