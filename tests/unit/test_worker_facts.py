"""Small facts of a host: fingerprints of weights, loads of devices, ports that are taken, pages of metrics."""

import os
import socket
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from workers.device_load import device_load
from workers.devices import Device, Found
from workers.exposition import exposition
from workers.instances import DeviceKind
from workers.lifecycle import Life, State
from workers.listening import listening
from workers.observation import DeviceLoad
from workers.report import WorkerReport
from workers.weights import fingerprint

# === weights ===


def test_a_fingerprint_changes_with_what_is_loaded(tmp_path):
    assert fingerprint(str(tmp_path)) == ""
    assert fingerprint("org/model-of-the-hub") == ""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x" * 200_000)
    first = fingerprint(str(tmp_path))
    assert len(first) == 16
    (tmp_path / "notes.txt").write_text("not loaded")
    assert fingerprint(str(tmp_path)) == first
    (tmp_path / "model.safetensors").write_bytes(b"x" * 200_001)
    second = fingerprint(str(tmp_path))
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert len({first, second, fingerprint(str(tmp_path))}) == 3
    assert fingerprint(str(tmp_path / "model.safetensors")) not in {"", first, second}


def test_what_cannot_be_read_has_no_fingerprint(tmp_path):
    (tmp_path / "a.json").symlink_to(tmp_path / "nowhere")
    assert fingerprint(str(tmp_path)) == ""


# === devices ===

ONE = Device("0", DeviceKind.NVIDIA, "A", 80, 40, 0.5, "GPU-1", "550.1")
TWO = Device("1", DeviceKind.NVIDIA, "A", 80, 60, 0.9, "GPU-2", "550.1")


def test_the_load_of_an_instances_devices():
    found = Found((ONE, TWO), ())
    assert device_load(("0", "GPU-2"), find=lambda: found) == DeviceLoad(0.9, 100, 160, "550.1")
    assert device_load(("0",), find=lambda: found) == DeviceLoad(0.5, 40, 80, "550.1")
    assert device_load(("7",), find=lambda: found) == DeviceLoad()
    silent = Found((replace(ONE, used_bytes=None, utilization=None),), ())
    assert device_load(("0",), find=lambda: silent) == DeviceLoad(None, None, 80, "550.1")


# === ports ===


def test_who_listens_is_found_with_its_owner():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        (taken,) = listening([(port, port)])
        assert taken.port == port
        assert taken.owner.startswith(f"pid {os.getpid()} (")
        assert listening([(port, port)], ours=[port]) == []
    assert listening([(port, port)]) == []


def test_without_proc_nothing_listens(tmp_path):
    assert listening([(1, 65535)], tmp_path) == []


def test_a_listener_of_another_user(tmp_path):
    (tmp_path / "net").mkdir()
    rows = "head\n   0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 77 1\n   1: short\n"
    (tmp_path / "net" / "tcp").write_text(rows)
    (taken,) = listening([(8080, 8080)], tmp_path)
    assert (taken.port, taken.owner) == (8080, "an unknown process")


# === metrics of one instance ===


def test_the_page_is_what_prometheus_reads():
    report = WorkerReport(
        "a", "i1", 3, "http://h", "vllm", 'p"q', ("tiny",), running=2, waiting=3, ttft_p95_s=0.5, preemptions=1
    )
    page = exposition(report, Life("a", state=State.READY, starts=2))
    families = {family.name: family for family in text_string_to_metric_families(page)}
    waiting = families["headrace_worker_waiting"].samples[0]
    assert (waiting.value, waiting.labels) == (3.0, {"worker": "a", "pool": 'p"q', "engine": "vllm"})
    assert [sample.labels["quantile"] for sample in families["headrace_worker_ttft_seconds"].samples] == ["0.95"]
    assert families["headrace_worker_device_used_bytes"].samples == []
    states = {each.labels["state"]: each.value for each in families["headrace_instance_state"].samples}
    assert states["ready"] == 1
    assert sum(states.values()) == 1
    assert families["headrace_instance_starts"].samples[0].value == 2
    assert "headrace_instance_state" not in exposition(report)
