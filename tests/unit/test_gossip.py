"""Ledgers told and heard."""

from math import exp

from gateway.leasing.gossip import EMPTY, GONE_S, MAX_BYTES, merge, write_ledger
from gateway.scheduling.model import Others
from gateway.scheduling.shares import Load


def load(name: str, used: int = 1) -> Load:
    return Load(name, 8, used, 0.5, 2.0, 4096, 0, 0, None, True, None, 0.0)


def test_what_one_writes_another_reads():
    text = write_ledger([load("w1", 2), load("idle", 0), load("w2")])
    assert text == "w1 2 500 2000 4096;w2 1 500 2000 4096"
    found = merge({"a": (0.1, text), "b": (0.2, text)})
    assert found["w1"] == Others(4.0, 1.0, 4.0, 8192.0)
    assert write_ledger([]) == EMPTY
    assert merge({"a": (0.0, EMPTY)}) == {}


def test_a_silent_gateway_fades_and_is_gone():
    text = write_ledger([load("w1")])
    assert merge({"a": (3.0, text)})["w1"].count == exp(-1.0)
    assert merge({"a": (GONE_S, text)}) == {}


def test_what_cannot_be_read_steers_nothing():
    numbers = ("-1 0 0 0", "1 2 3", "nan 0 0 0", "1e9 0 0 0", "99999999999999 0 0 0", "² 1 1 1")
    for text in (*(f"w1 {each}" for each in numbers), "²", ""):
        assert merge({"a": (0.0, text)}) == {}
    assert merge({"a": (0.0, "w 1 1 1 1;" * MAX_BYTES)}) == {}


def test_a_ledger_has_an_end():
    text = write_ledger([load(f"worker-with-a-long-name-{number}") for number in range(10_000)])
    assert len(text) <= MAX_BYTES
    assert text.count(";") > 3000
