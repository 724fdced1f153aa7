"""The Prometheus reader: it finds what it is asked for, and nothing that it is fed stops or slows it."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.scrape import MAX_SAMPLES, MAX_SCRAPE_BYTES, Sample, Scraper

SCRAPER = Scraper({"e:running", "e:running_by_reason", "up"})


def read(text):
    return SCRAPER.read(text.encode() if isinstance(text, str) else text)


def test_wanted_samples_are_found_among_others_in_order():
    text = (
        "# HELP up about up 1\n# TYPE up gauge\nup 1\n"
        'e:running{engine="0"} 3.0\ne:running{engine="1"} 4\n'
        'e:running_by_reason{reason="capacity"} 5\n'
        "e:running_bucket 9\nother 8\nnot_up 2\n"
    )
    assert read(text) == {
        "up": [Sample({}, 1.0)],
        "e:running": [Sample({"engine": "0"}, 3.0), Sample({"engine": "1"}, 4.0)],
        "e:running_by_reason": [Sample({"reason": "capacity"}, 5.0)],
    }


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ("up 1", Sample({}, 1.0)),
        ("up\t1", Sample({}, 1.0)),
        ("  up   1  ", Sample({}, 1.0)),
        ("up 1\r", Sample({}, 1.0)),
        ("up 1.5e+3 1700000000000", Sample({}, 1500.0)),
        ("up -.5", Sample({}, -0.5)),
        ("up 7.", Sample({}, 7.0)),
        ("up{} 1", Sample({}, 1.0)),
        ("up {} 1", Sample({}, 1.0)),
        ('up{a="1",} 2', Sample({"a": "1"}, 2.0)),
        ('up{ a = "1" , b="2" } 2', Sample({"a": "1", "b": "2"}, 2.0)),
        ('up{a="} 9",b="x{y"} 2', Sample({"a": "} 9", "b": "x{y"}, 2.0)),
        (r'up{a="q\"b\\n\nc\x"} 2', Sample({"a": 'q"b\\n\ncx'}, 2.0)),
        ('up{a="é"} 2', Sample({"a": "é"}, 2.0)),
        (b'up{a="\xff"} 2', Sample({"a": "\ufffd"}, 2.0)),
    ],
)
def test_lines_that_say_something(line, sample):
    assert read(line) == {"up": [sample]}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "up",
        "up ",
        "up NaN",
        "up +Inf",
        "up 1e999",
        "up 0x10",
        "up 1_0",
        "up 1,5",
        "up one",
        "#up 1",
        'up{a="1" 1',
        'up{a="1"',
        "up{a=1} 1",
        'up{a="1"}x 1',
        'up{a="1"} ',
        "up{a='1'} 1",
        'up{a="1\n"} 1',
        'up{1="a"} 1',
        'up{a="' + "x" * 20000 + '"} 1',
        "up " + "1" * 41,
    ],
)
def test_lines_that_say_nothing(line):
    assert read(line) == {}


def test_the_number_of_samples_is_bounded():
    assert len(read("up 1\n" * (MAX_SAMPLES + 5))["up"]) == MAX_SAMPLES


def test_the_size_is_bounded():
    assert read(b" " * MAX_SCRAPE_BYTES) == {}
    with pytest.raises(ValueError, match="4194305 bytes, at most 4194304"):
        read(b" " * (MAX_SCRAPE_BYTES + 1))


@pytest.mark.parametrize(
    "piece", [b"\n", b"up{", b'up{a="', b'up{a="\\', b"up ", b"\nup 1", b"\nup{", b"}", b'a="1",', b"\n \t"]
)
def test_no_text_takes_long(piece):
    text = b"up{" + piece * ((MAX_SCRAPE_BYTES - 3) // len(piece))
    before = time.process_time()
    read(text)
    assert time.process_time() - before < 2.0  # a quadratic reader would need minutes


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda t: f"up{{{t}}} 1\nup {t}".encode()))
def test_any_bytes_are_survived(text):
    for samples in read(text).values():
        assert all(math.isfinite(sample.value) for sample in samples)


values = st.floats(allow_nan=False, allow_infinity=False)
labels = st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), st.text(max_size=12), max_size=4)


@given(st.lists(st.tuples(labels, values), max_size=6))
def test_what_an_exporter_writes_is_read(samples):
    def escaped(value):
        return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    text = "".join(
        "up{" + ",".join(f'{k}="{escaped(v)}"' for k, v in named.items()) + f"}} {value!r}\n"
        for named, value in samples
    )
    assert read(text).get("up", []) == [Sample(named, value) for named, value in samples]
