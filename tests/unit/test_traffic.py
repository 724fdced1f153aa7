"""The record of traffic: content-free, bounded, and over a restart."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gateway import traffic as module
from gateway.records import RequestRecord, Terminal
from gateway.traffic import FIELDS, HEADER, Traffic


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def admitted(**changes: Any) -> Any:
    request = SimpleNamespace(
        max_output_tokens=100, sequences=1, session="acme\0my-private-session", prefix_hashes=(1, 2)
    )
    classified = SimpleNamespace(class_name="standard", why="budget; class by default")
    found = SimpleNamespace(request=request, classified=classified, model_public="chat")
    for name, value in changes.items():
        owner = next((one for one in (request, classified) if hasattr(one, name)), found)
        setattr(owner, name, value)
    return found


def ended(request_id: str = "r1", **changes: Any) -> RequestRecord:
    record = RequestRecord(request_id, "POST", "/v1/chat/completions", "10.0.0.1:99")
    usual: dict[str, Any] = {
        "tenant": "acme",
        "class_name": "standard",
        "pool": "short-chat",
        "endpoint": "chat",
        "stream": True,
        "outcome": Terminal.OK,
        "prompt_estimate": 90,
        "prompt_tokens": 100,
        "output_tokens": 20,
        "ttft_s": 0.25,
        "duration_s": 1.5,
    }
    for name, value in {**usual, **changes}.items():
        setattr(record, name, value)
    return record


def entry(line: bytes) -> dict[str, Any]:
    return dict(zip(FIELDS, json.loads(line), strict=True))


def one(record: RequestRecord, letting_in: Any = None) -> dict[str, Any]:
    traffic = Traffic(Clock())
    traffic.admitted(record.request_id, letting_in or admitted())
    traffic.finished(record)
    (line,) = traffic.lines(60)
    return entry(line)


def test_a_request_is_a_line_without_content():
    found = one(ended())
    assert found == {
        "at": Clock.now,
        "tenant": "acme",
        "asked_class": None,
        "class": "standard",
        "pool": "short-chat",
        "model": "chat",
        "endpoint": "chat",
        "stream": True,
        "prompt_tokens": 100,
        "max_output_tokens": 100,
        "sequences": 1,
        "output_tokens": 20,
        "session": found["session"],
        "prefix": [1, 2],
        "outcome": "ok",
        "ttft_s": 0.25,
        "duration_s": 1.5,
    }
    assert len(found["session"]) == 16
    assert "private" not in json.dumps(found)
    assert "10.0.0.1" not in json.dumps(found)


def test_what_is_not_known_is_null_or_estimated():
    found = one(
        ended(prompt_tokens=None, output_tokens=None, ttft_s=None, outcome=Terminal.REJECTED), admitted(session="")
    )
    assert (found["prompt_tokens"], found["output_tokens"], found["ttft_s"], found["session"]) == (90, None, None, "")


@pytest.mark.parametrize(
    ("why", "asked"),
    [("x; class by header", "standard"), ("x; class by service_tier", "standard"), ("x; class by rule", None)],
)
def test_the_class_that_was_asked_for(why, asked):
    assert one(ended(), admitted(why=why))["asked_class"] == asked


def test_a_request_that_was_never_let_in_is_no_traffic():
    traffic = Traffic(Clock())
    traffic.finished(ended())
    assert len(traffic) == 0


def test_only_the_last_so_many_seconds():
    clock = Clock()
    traffic = Traffic(clock)
    for number in range(10):
        clock.now = Clock.now + 60 * number
        traffic.admitted(str(number), admitted(model_public=f"m{number}"))
        traffic.finished(ended(str(number)))
    assert len(traffic.lines(120)) == 3
    assert traffic.asked_models(120) == {"m7", "m8", "m9"}
    clock.now += module.MAX_AGE_S
    traffic.admitted("x", admitted())
    traffic.finished(ended("x"))
    assert len(traffic) == 2


@pytest.mark.parametrize("name", ["MAX_REQUESTS", "MAX_BYTES"])
def test_the_ring_is_bounded(monkeypatch, name):
    monkeypatch.setattr(module, name, 5 if name == "MAX_REQUESTS" else 1000)
    traffic = Traffic(Clock())
    for number in range(50):
        traffic.admitted(str(number), admitted())
        traffic.finished(ended(str(number)))
    assert len(traffic) <= 8
    assert traffic.bytes == sum(map(len, traffic.lines(60)))


def test_requests_that_never_end_and_models_that_clients_invent_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_RUNNING", 10)
    monkeypatch.setattr(module, "MAX_MODELS", 10)
    traffic = Traffic(Clock())
    for number in range(100):
        traffic.admitted(str(number), admitted(model_public=str(number)))
    assert len(traffic._begun) == len(traffic.asked_models()) == 10


async def test_it_comes_back_from_its_file(tmp_path, monkeypatch):
    file = tmp_path / "state" / "traffic.jsonl"
    traffic = Traffic(Clock(), file)
    await traffic.flush()
    assert not file.exists()
    for number in range(3):
        traffic.admitted(str(number), admitted())
        traffic.finished(ended(str(number)))
        await traffic.flush()
    lines = file.read_bytes().splitlines()
    assert json.loads(lines[0]) == HEADER
    assert len(lines) == 4
    assert file.stat().st_mode & 0o777 == 0o600
    with file.open("ab") as opened:
        opened.write(b'[1, 2]\n{"torn')
    again = Traffic(Clock(), file)
    await again.load()
    assert again.lines(60) == traffic.lines(60)
    assert again.asked_models() == {"chat"}
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 10)
    again.admitted("x", admitted())
    again.finished(ended("x"))
    await again.flush()
    assert len(file.read_bytes().splitlines()) == 2
    third = Traffic(Clock(), file)
    await third.load()
    assert len(third) == 4


async def test_a_disk_that_is_full_is_told(tmp_path):
    (tmp_path / "blocker").write_text("")
    traffic = Traffic(Clock(), tmp_path / "blocker" / "traffic.jsonl")
    await traffic.load()
    traffic.admitted("r1", admitted())
    traffic.finished(ended())
    await traffic.flush()
    assert "blocker" in (traffic.error or "")
