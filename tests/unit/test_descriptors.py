"""How many connections the descriptors are good for."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.descriptors import LEAST, RESERVED, connection_cap, raise_limit


@given(st.integers(LEAST, 1 << 30), st.integers(1, 1_000_000))
def test_every_connection_has_a_descriptor_for_its_worker(descriptors: int, wanted: int) -> None:
    cap = connection_cap(descriptors, wanted)
    assert 1 <= cap <= wanted
    assert 2 * cap + RESERVED <= descriptors


def test_too_few_are_refused_with_the_cure() -> None:
    with pytest.raises(ValueError, match=r"only 95 open files are allowed, 96 are needed: .*ulimit -n"):
        connection_cap(95, 10)


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 512), hard))
    try:
        assert raise_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert raise_limit() == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1 << 60))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_limit() == 1024
