"""Our own request fields: at most once, and only with values that mean something."""

import pytest

from gateway.errors import ErrorAnswer, ErrorCode
from gateway.request_fields import RequestFields, read_fields


def read(*headers: tuple[bytes, bytes], rules: frozenset[bytes] = frozenset()) -> RequestFields:
    fields = read_fields(list(headers), rules)
    assert isinstance(fields, RequestFields), fields
    return fields


def refused(*headers: tuple[bytes, bytes]) -> ErrorAnswer:
    answer = read_fields(list(headers))
    assert isinstance(answer, ErrorAnswer)
    return answer


def test_nothing_said():
    assert read() == RequestFields()
    assert (
        read((b"host", b"a"), (b"x-priority", b"0"), (b"x-vllm-priority", b"-1"), (b"x-tenant", b"t"))
        == RequestFields()
    )


def test_everything_said():
    fields = read(
        (b"authorization", b"Bearer k"),
        (b"x-api-key", b"k2"),
        (b"content-type", b"application/json"),
        (b"content-encoding", b" GZip "),
        (b"x-headrace-priority", b"batch"),
        (b"x-headrace-tenant", b"acme"),
        (b"x-headrace-timeout-ms", b"1500"),
        (b"x-headrace-queue", b"Never"),
        (b"x-session-id", b"s1"),
    )
    assert fields == RequestFields(b"Bearer k", b"k2", b"application/json", b"gzip", "batch", "acme", 1500, False, "s1")


NAMES = [
    *(b"authorization", b"x-api-key", b"content-type", b"content-encoding", b"x-headrace-priority"),
    *(b"x-headrace-tenant", b"x-headrace-timeout-ms", b"x-headrace-queue", b"x-session-id"),
]
VALUES = {b"x-headrace-timeout-ms": b"5", b"x-headrace-queue": b"never"}


@pytest.mark.parametrize("name", NAMES)
def test_br_07_09_a_field_sent_twice_is_refused(name: bytes):
    value = VALUES.get(name, b"x")
    answer = refused((name, value), (b"accept", b"*/*"), (name, value))
    assert answer.status == 400
    assert answer.code is (ErrorCode.INVALID_PRIORITY if b"priority" in name else ErrorCode.BAD_REQUEST)
    assert "more than once" in answer.message


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"1e3", b"abc", b"5 ", b"\xb2", b"9" * 13, b"0x10"])
def test_timeouts_that_are_no_number(value: bytes):
    answer = refused((b"x-headrace-timeout-ms", value))
    assert (answer.code, answer.param) == (ErrorCode.INVALID_VALUE, "X-Headrace-Timeout-Ms")


@pytest.mark.parametrize("value", [b"", b"always", b"never, never", b"true"])
def test_queue_takes_never_only(value: bytes):
    assert refused((b"x-headrace-queue", value)).param == "X-Headrace-Queue"


def test_a_long_session_id_becomes_a_digest():
    long = read((b"x-session-id", b"s" * 10_000)).session
    assert len(long) == 64
    assert read((b"x-session-id", b"s" * 10_000)).session == long
    assert read((b"x-session-id", b"s" * 10_001)).session != long
    assert read((b"x-session-id", b"s" * 256)).session == "s" * 256


def test_fields_that_rules_look_at():
    headers = ((b"x-team", b" a "), (b"x-other", b"c"), (b"x-team", b"b"), (b"x-session-id", b"s"))
    fields = read(*headers, rules=frozenset({b"x-team", b"x-session-id"}))
    assert fields.rule_headers == {"x-team": "a, b", "x-session-id": "s"}
    assert read(*headers).rule_headers == {}
