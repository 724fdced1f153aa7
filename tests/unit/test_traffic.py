"""The record of traffic: content-free, bounded, and over a restart."""

import json
from typing import Any

import pytest

from gateway import traffic as module
from gateway.records import RequestRecord, Terminal
from gateway.scheduling.model import Request
from gateway.traffic import FIELDS, HEADER, Traffic, names_of


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def asked(**changes: Any) -> Request:
    usual = {"max_output_tokens": 100, "session": "acme\0my-private-session", "prefix_hashes": (1, 2)}
    return Request("r1", "acme", 0, "chat", ("short-chat",), 100, **{**usual, **changes})


def ended(request_id: str = "r1", **changes: Any) -> RequestRecord:
    record = RequestRecord(request_id, "POST", "/v1/chat/completions", "10.0.0.1:99")
    usual: dict[str, Any] = {
        "tenant": "acme",
        "class_name": "standard",
        "pool": "short-chat",
        "endpoint": "chat",
        "stream": True,
        "outcome": Terminal.OK,
        "model": "chat",
        "why": "budget; class by default",
        "max_output_tokens": 100,
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


def one(record: RequestRecord, request: Request | None = None) -> dict[str, Any]:
    traffic = Traffic(Clock())
    traffic.finished(record, request or asked(), Clock.now, names_of(record))
    (line,) = traffic.lines(60)
    return entry(line)


def end(traffic: Traffic, at: float, **changes: Any) -> None:
    record = ended(**changes)
    traffic.finished(record, asked(), at, names_of(record))


def test_a_request_is_a_line_without_content():
    found = one(ended())
    assert found == {
        "at": Clock.now - 1.5,
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
        ended(prompt_tokens=None, output_tokens=None, ttft_s=None, outcome=Terminal.REJECTED), asked(session="")
    )
    assert (found["prompt_tokens"], found["output_tokens"], found["ttft_s"], found["session"]) == (90, None, None, "")


@pytest.mark.parametrize(
    ("why", "asked"),
    [("x; class by header", "standard"), ("x; class by service_tier", "standard"), ("x; class by rule", None)],
)
def test_the_class_that_was_asked_for(why, asked):
    assert one(ended(why=why))["asked_class"] == asked


def test_a_request_whose_output_was_left_open():
    found = one(ended(max_output_tokens=None, tenant='odd"\u2028', stream=False), asked(prefix_hashes=(), sequences=3))
    assert (found["max_output_tokens"], found["prefix"], found["sequences"]) == (None, [], 3)
    assert (found["tenant"], found["stream"]) == ('odd"\u2028', False)


def test_only_the_last_so_many_seconds():
    clock = Clock()
    traffic = Traffic(clock)
    for number in range(10):
        clock.now = Clock.now + 60 * number
        traffic.asked(f"m{number}", clock.now)
        end(traffic, clock.now)
    assert len(traffic.lines(121.5)) == 3
    assert traffic.asked_models(120) == {"m7", "m8", "m9"}
    clock.now += module.MAX_AGE_S
    end(traffic, clock.now)
    assert len(traffic) == 1


@pytest.mark.parametrize("name", ["MAX_REQUESTS", "MAX_BYTES"])
def test_the_ring_is_bounded(monkeypatch, name):
    monkeypatch.setattr(module, name, 5 if name == "MAX_REQUESTS" else 1000)
    traffic = Traffic(Clock())
    for _ in range(50):
        traffic.asked("chat", Clock.now)
        end(traffic, Clock.now)
    assert len(traffic) <= 8
    assert traffic.bytes == sum(map(len, traffic.lines(60)))


def test_what_is_forgotten_leaves_nothing_behind():
    clock = Clock()
    traffic = Traffic(clock)
    kept = 1000
    for number in range(3 * module.MAX_GONE):
        clock.now = Clock.now + number * module.MAX_AGE_S / kept
        end(traffic, clock.now, prompt_tokens=number)
        assert len(traffic) == min(number + 1, kept)
        assert len(traffic._lines) == len(traffic._times) <= module.MAX_GONE + kept
    found = traffic.lines(2 * module.MAX_AGE_S)
    assert [entry(line)["prompt_tokens"] for line in found] == list(range(number + 1 - kept, number + 1))
    assert traffic.bytes == sum(map(len, found)) == sum(map(len, traffic._lines))
    clock.now += 2 * module.MAX_AGE_S
    end(traffic, clock.now)
    assert len(traffic) == 1


async def test_what_cannot_be_written_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_REQUESTS", 5)
    file = tmp_path / "traffic.jsonl"
    traffic = Traffic(Clock(), file)
    for number in range(33):
        end(traffic, Clock.now, prompt_tokens=number)
        assert len(traffic._unsaved) < 10
    await traffic.flush()
    told = [entry(line)["prompt_tokens"] for line in file.read_bytes().splitlines()[1:]]
    assert told == list(range(28, 33))


def test_models_that_clients_invent_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_MODELS", 10)
    traffic = Traffic(Clock())
    for number in range(100):
        traffic.asked(str(number), Clock.now + number)
    assert {"98", "99"} <= traffic.asked_models()
    assert len(traffic.asked_models()) <= 10


async def test_it_comes_back_from_its_file(tmp_path, monkeypatch):
    file = tmp_path / "state" / "traffic.jsonl"
    traffic = Traffic(Clock(), file)
    await traffic.flush()
    assert not file.exists()
    for _ in range(3):
        traffic.asked("chat", Clock.now)
        end(traffic, Clock.now)
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
    end(again, Clock.now)
    await again.flush()
    assert len(file.read_bytes().splitlines()) == 2
    third = Traffic(Clock(), file)
    await third.load()
    assert len(third) == 4


async def test_a_disk_that_is_full_is_told(tmp_path):
    (tmp_path / "blocker").write_text("")
    traffic = Traffic(Clock(), tmp_path / "blocker" / "traffic.jsonl")
    await traffic.load()
    end(traffic, Clock.now)
    await traffic.flush()
    assert "blocker" in (traffic.error or "")
