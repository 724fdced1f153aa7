"""The report codec: what is written can be read, and nothing else can."""

from dataclasses import fields, replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.report import (
    MAX_MODELS,
    MAX_REPORT_BYTES,
    STATES,
    BadReport,
    WorkerReport,
    decode,
    encode,
    http_base,
    is_worker_id,
    report_key,
    socket_of,
    workers_key,
)

LEAST = WorkerReport(
    id="w1",
    incarnation="a1",
    sequence=0,
    url="http://127.0.0.1:9001",
    engine="vllm",
    pool="short-chat",
    models=("tiny",),
)
FULL = WorkerReport(
    id="w.1:a_b-c",
    incarnation="f00d",
    sequence=7,
    url="https://[::1]:8443",
    engine="simulator",
    pool="long-context",
    models=("tiny", "org/tiny-lora é"),
    state="draining",
    max_model_len=4096,
    max_num_seqs=16,
    max_num_batched_tokens=2048,
    kv_tokens=65536,
    kv_usage=0.25,
    running=3,
    waiting=2,
    preemptions=1,
    prompt_tokens=10,
    generation_tokens=20,
    prefix_queries=30,
    prefix_hits=5,
    version="0.32.0",
    preset="llama3-8b/a100-80",
    supports_priority=True,
    supports_continuation=True,
    ttft_p50_s=0.25,
    ttft_p95_s=1.5,
    itl_p50_s=0.01,
    itl_p95_s=0.05,
    device_utilization=0.75,
    device_used_bytes=70 * 2**30,
    device_bytes=80 * 2**30,
    adapters=("org/tiny-lora é",),
    driver="550.54.15",
    weights="0123456789abcdef",
)

ids = st.from_regex(r"[A-Za-z0-9._:-]{1,128}", fullmatch=True)
lines = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=60)
urls = st.builds(
    lambda scheme, host, port: f"{scheme}://{host}{port}",
    st.sampled_from(["http", "https"]),
    st.from_regex(r"[a-z0-9][a-z0-9.-]{0,30}", fullmatch=True) | st.ip_addresses(v=6).map(lambda a: f"[{a}]"),
    st.just("") | st.integers(1, 65535).map(lambda p: f":{p}"),
)
totals = st.integers(0, 2**53)
requests = st.integers(0, 1_000_000)
reports = st.builds(
    WorkerReport,
    id=ids,
    incarnation=ids,
    sequence=totals,
    url=urls,
    engine=ids,
    pool=ids,
    models=st.lists(lines, max_size=5).map(tuple),
    state=st.sampled_from(STATES),
    max_model_len=st.none() | st.integers(1, 10**9),
    max_num_seqs=st.none() | st.integers(1, 10**6),
    max_num_batched_tokens=st.none() | st.integers(1, 10**9),
    kv_tokens=st.none() | st.integers(1, 10**12),
    kv_usage=st.none() | st.floats(0, 1),
    running=requests,
    waiting=requests,
    preemptions=totals,
    prompt_tokens=totals,
    generation_tokens=totals,
    prefix_queries=totals,
    prefix_hits=totals,
    version=st.just("") | lines,
    preset=st.none() | lines,
    supports_priority=st.booleans(),
    supports_continuation=st.booleans(),
)


def document(**changes):
    return orjson.dumps(orjson.loads(orjson.dumps(LEAST)) | changes)


@given(reports)
def test_what_is_written_is_read_back(report):
    assert decode(encode(report), report.id) == report


@given(st.binary(max_size=400))
def test_arbitrary_bytes_raise_nothing_but_bad_report(raw):
    with pytest.raises(BadReport):
        decode(raw, "w1")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([f.name for f in fields(WorkerReport)]), json_values)
def test_any_value_in_any_field_is_read_or_named(field, value):
    raw = document(**{field: value})
    try:
        report = decode(raw, "w1")
    except BadReport as bad:
        named = (bad.field, len(str(bad)) < 400)
    else:
        named = (field, decode(encode(report), "w1") == report)
    assert named == (field, True)


def test_every_field_survives():
    assert all(getattr(FULL, f.name) != getattr(LEAST, f.name) for f in fields(WorkerReport))
    assert decode(encode(FULL), FULL.id) == FULL


def test_only_seven_fields_are_needed_and_unknown_ones_are_ignored():
    raw = orjson.dumps(
        {
            "id": "w1",
            "incarnation": "a1",
            "sequence": 0,
            "url": "http://127.0.0.1:9001",
            "engine": "vllm",
            "pool": "short-chat",
            "models": ["tiny"],
            "from_the_future": {"deep": [1]},
        }
    )
    assert decode(raw, "w1") == LEAST


@pytest.mark.parametrize("field", ["id", "incarnation", "sequence", "url", "engine", "pool", "models"])
def test_a_missing_field_is_named(field):
    fewer = orjson.loads(document())
    del fewer[field]
    with pytest.raises(BadReport) as caught:
        decode(orjson.dumps(fewer), "w1")
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sequence", True),
        ("sequence", -1),
        ("sequence", 2**53 + 1),
        ("sequence", 1.0),
        ("running", 1e308),
        ("running", 1_000_001),
        ("running", None),
        ("waiting", "3"),
        ("max_model_len", 0),
        ("max_num_seqs", False),
        ("kv_tokens", 1e308),
        ("kv_usage", 1.01),
        ("kv_usage", -0.01),
        ("kv_usage", 1e308),
        ("kv_usage", True),
        ("kv_usage", "0.5"),
        ("state", "fine"),
        ("state", None),
        ("models", "tiny"),
        ("models", ["tiny", 3]),
        ("models", [""]),
        ("models", ["a\nb"]),
        ("models", ["a"] * (MAX_MODELS + 1)),
        ("pool", "x" * 129),
        ("pool", "a b"),
        ("engine", ""),
        ("incarnation", "a\n"),
        ("version", "x" * 257),
        ("version", None),
        ("preset", ""),
        ("supports_priority", 1),
        ("supports_continuation", None),
    ],
)
def test_a_wrong_value_is_named(field, value):
    with pytest.raises(BadReport) as caught:
        decode(document(**{field: value}), "w1")
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: must be") or "must have" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:9001",
        "ftp://host",
        "file:///etc/passwd",
        "redis://127.0.0.1:6379",
        "http://",
        "http://:80",
        "http://user@host",
        "http://user:secret@host",
        "http://host/",
        "http://host/path",
        "http://host?x=1",
        "http://host#x",
        "http://host:0",
        "http://host:65536",
        "http://host:8x",
        "http://ho st",
        "http://host\r\nx: y",
        "http://host\n",
        "http://[::1",
        "http://[:::1]:80",
        "http://[1.2.3]",
        "HTTP://host",
        "http://-host",
        "http://hóst",
        "http://" + "a" * 300,
        "unix://",
        "unix:///",
        "unix://run/x",
        "unix:///a b",
        "unix:///a\n",
        "unix:///" + "a" * 107,
        "http+unix:///run/x/y?z=\x00",
        "http+unix://run%2Fx",
        "https+unix://%2Frun%2Fx",
    ],
)
def test_only_plain_http_addresses_pass(url):
    with pytest.raises(BadReport, match=r"^url: must be http://host"):
        decode(document(url=url), "w1")


@pytest.mark.parametrize(
    "url", ["unix:///run/engine.sock", "unix:/run/engine.sock", "http+unix://%2Frun%2Fengine.sock"]
)
def test_unix_sockets_pass(url):
    assert decode(document(url=url), "w1").url == url
    assert socket_of(url) == "/run/engine.sock"
    assert http_base(url) == "http://localhost"
    assert (socket_of("http://host"), http_base("http://host")) == (None, "http://host")


def test_an_integer_share_is_a_number_too():
    assert decode(document(kv_usage=1), "w1").kv_usage == 1.0


def test_a_report_under_another_workers_key_is_refused():
    with pytest.raises(BadReport, match=r"^id: must be 'w2', the id in the key's name, got 'w1'$"):
        decode(document(), "w2")


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b'"w1"', b"{", b"\xff\xfe", b'{"id": NaN}', b"[" * 5000])
def test_not_an_object(raw):
    with pytest.raises(BadReport) as caught:
        decode(raw, "w1")
    assert caught.value.field == "report"


def test_a_huge_report_is_refused_by_size_alone():
    with pytest.raises(BadReport, match="at most 65536 bytes, got '10485760 bytes'"):
        decode(b" " * (10 << 20), "w1")
    assert decode(document().ljust(MAX_REPORT_BYTES), "w1") == LEAST


def test_long_values_are_shown_short():
    error = BadReport("pool", "x" * (10 << 20), "must be short")
    assert error.value == "'" + "x" * 79 + "…"
    assert BadReport("models", [1, 2], "no").value == "list of 2"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kv_usage": float("nan")}, "kv_usage"),
        ({"running": -1}, "running"),
        ({"sequence": 2**70}, "report"),
        ({"pool": "\ud800"}, "report"),
    ],
)
def test_a_bad_report_is_never_written(changes, field):
    with pytest.raises(BadReport) as caught:
        encode(replace(LEAST, **changes))
    assert caught.value.field == field


def test_keys_of_a_fleet_share_a_cluster_slot():
    assert workers_key("default") == "headrace:{default}:workers"
    assert report_key("default", "w1") == "headrace:{default}:worker:w1"
    assert is_worker_id("w1")
    assert not is_worker_id("w1\n")
