"""The log: one valid JSON object a line for any input, and a writer that never waits."""

import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import log as log_module
from gateway.log import MAX_TEXT_CHARS, Log, Writer, line_of, open_log, request_fields, request_line, said_of
from gateway.records import RequestRecord, Terminal


@given(st.text(st.characters(), max_size=400), st.binary(max_size=50))
def test_any_text_is_one_valid_json_line(text, raw):
    line = line_of({"model": text, "path": raw.decode("utf-8", "surrogateescape"), "n": 1})
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1
    assert json.loads(line)["n"] == 1


def test_hostile_characters_are_escaped_and_mean_the_same():
    odd = "a\r\nb\x1b[31m\u2028\x9b\x7f\x85\U000e0001 你好"
    line = line_of({"model": odd})
    assert json.loads(line)["model"] == odd
    assert line[:-1].decode().isprintable()
    assert "你好" in line.decode()
    assert json.loads(line_of({"model": "x\ud800"}))["model"] == "x\\ud800"


def test_long_text_is_cut_and_odd_numbers_pass():
    assert len(json.loads(line_of({"x": "x" * 10_000}))["x"]) == MAX_TEXT_CHARS
    assert len(json.loads(line_of({"x": "\ud800" * 10_000}))["x"]) < 8 * MAX_TEXT_CHARS
    assert json.loads(line_of({"big": 10**30, "bad": ["\ud800"]})) == {"big": str(10**30), "bad": "['\\ud800']"}
    assert json.loads(line_of({"nan": float("nan")})) == {"nan": None}


def read_all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
    os.close(fd)
    return b"".join(parts)


def test_writer_keeps_order_and_writes_everything_on_close():
    reader, writer_fd = os.pipe()
    writer = Writer(writer_fd, owned=True)
    lines = [b"%d\n" % number for number in range(5000)]
    for line in lines:
        writer.write(line)
    writer.close()
    writer.close()
    writer.write(b"late\n")
    assert read_all(reader) == b"".join(lines)
    assert writer.dropped == 1


@pytest.mark.parametrize("pause_s", [0.0, 0.02, 0.07])
def test_closing_at_any_time_ends_at_once(pause_s):
    reader, writer_fd = os.pipe()
    writer = Writer(writer_fd, owned=True)
    writer.write(b"a\n")
    time.sleep(pause_s)  # before, during and after the thread gathers a batch
    writer.write(b"b\n")
    began = time.monotonic()
    writer.close(timeout_s=5.0)
    assert time.monotonic() - began < 1.0
    assert read_all(reader) == b"a\nb\n"


def test_a_writer_that_had_nothing_to_do_begins_again():
    reader, writer_fd = os.pipe()
    writer = Writer(writer_fd, owned=True)
    for number in range(4):
        writer.write(b"%d\n" % number)
        assert os.read(reader, 100) == b"%d\n" % number
        time.sleep(0.06 * (number % 2))  # while it still looks, and when it has gone to sleep
    writer.close()
    os.close(reader)


def test_writer_drops_and_counts_when_nobody_reads():
    reader, writer_fd = os.pipe()
    writer = Writer(writer_fd, owned=True, max_bytes=1 << 20)
    line = b"x" * 1023 + b"\n"
    for _ in range(3000):
        writer.write(line)  # a pipe holds 64 KiB, the buffer 1 MiB: most of this fits nowhere
    assert writer.dropped >= 3000 - 1024 - 64
    writer.close(timeout_s=0.2)  # gives up waiting for a reader that does not read
    os.close(reader)


def test_writer_counts_what_the_file_refused():
    reader, writer_fd = os.pipe()
    os.close(reader)
    writer = Writer(writer_fd, owned=True)
    writer.write(b"a\n")
    writer.write(b"b\n")
    writer.close()
    assert writer.dropped == 2


def test_log_to_one_file_or_nowhere(tmp_path):
    path = tmp_path / "gateway.log"
    log = open_log(str(path), str(path))
    log.event("worker", worker="w1", state="ejected")
    log.close()
    (line,) = path.read_bytes().splitlines()
    assert json.loads(line) | {"time": 0} == {"time": 0, "event": "worker", "worker": "w1", "state": "ejected"}
    assert path.stat().st_mode & 0o007 == 0

    silent = open_log("none", "none")
    silent.event("x")
    silent.close()
    assert silent.dropped == 0


def test_dropped_lines_of_both_logs_are_summed_once():
    reader, writer_fd = os.pipe()
    os.close(reader)
    writer = Writer(writer_fd, owned=True)
    log = Log(writer, writer)
    log.event("x")
    log.close()
    assert log.dropped == 1


def test_one_line_a_request(tmp_path):
    path = tmp_path / "access.log"
    log = open_log(str(path), "none")
    record = RequestRecord("r-1", "POST", "/v1/chat/completions", "127.0.0.1", tenant="acme", model="x\n")
    log.request(record, 1.0)
    record.ttft_s = 0.1234567
    log.request(record, 2.0, said_of(record))
    log.close()
    first, second = map(json.loads, path.read_bytes().splitlines())
    assert first["event"] == "request"
    assert (first["request_id"], first["tenant"], first["outcome"]) == ("r-1", "acme", "internal")
    assert (first["ttft_s"], second["ttft_s"]) == (None, 0.123457)
    assert first["model"] == "x\n"


@given(st.text(max_size=40), st.integers(0, 3), st.sampled_from(Terminal), st.none() | st.floats(0, 1e4))
def test_a_requests_line_is_its_fields_as_json(odd: str, number: int, outcome: Terminal, seconds: float | None):
    record = RequestRecord(
        "req-1", "POST", "/", "p", tenant=odd, key_id=odd or None, class_name=odd, why=odd, pool=odd, worker=odd,
        endpoint=odd, model=odd, stream=bool(number), status=200 + number, outcome=outcome, reason=odd,
        prompt_estimate=number, prompt_tokens=number or None, output_tokens=number or None, finish_reason=odd,
        queue_s=number / 7, ttft_s=seconds, duration_s=number / 3, attempts=number, bytes_in=number, bytes_out=number,
        revision=number,
    )  # fmt: skip
    for said in (None, said_of(record)):
        line = request_line(record, 1_800_000_000.1239, said)
        assert json.loads(line) == json.loads(line_of(request_fields(record, 1_800_000_000.1239)))
        assert line.isascii() or line.decode().rstrip("\n").isprintable()


def test_a_line_is_bounded_whatever_its_names_are():
    long = RequestRecord("r", "POST", "/", "p", model="m" * 20_000)
    for said in (None, said_of(long)):
        assert len(request_line(long, 0.0, said)) < log_module.MAX_LINE_BYTES
    assert said_of(RequestRecord("r", "POST", "/", "p", model="m" * 1000, pool="p" * 1000)) is None
