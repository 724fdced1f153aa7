"""Finding devices: NVML by a stand-in for its library, npu-smi by its recorded table, this host by itself."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.devices import find_devices, parse_npu_smi, read_nvml
from workers.instances import DeviceKind
from workers.units import GIB, MIB

# As Ascend's documentation of `npu-smi info` prints it; not recorded on a device by us.
NPU_SMI = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 23.0.rc2                 Version: 23.0.rc2                                              |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 92.1        37                0    / 0             |
| 0                         | 0000:C1:00.0  | 40          0    / 0          3350 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | OK            | 90.0        36                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3349 / 65536         |
+===========================+===============+====================================================+
| 2     310P3               | OK            | NA          39                0    / 0             |
| 0     2                   | 0000:41:00.0  | 0           1693 / 21534                           |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 4242          | python3                  | 1000                    |
"""


def test_npu_smi() -> None:
    first, second, third = parse_npu_smi(NPU_SMI)
    assert (first.id, first.kind, first.name, first.driver) == ("0", DeviceKind.ASCEND, "910B3", "23.0.rc2")
    assert (first.memory_bytes, first.used_bytes, first.utilization) == (65536 * MIB, 3350 * MIB, 0.4)
    assert (second.id, second.utilization) == ("1", 0.0)
    assert (third.id, third.name, third.memory_bytes) == ("2", "310P3", 21534 * MIB)


@pytest.mark.parametrize("text", ["", "npu-smi: command failed", "| 0 | 1 |", NPU_SMI[:500]])
def test_npu_smi_that_says_nothing(text: str) -> None:
    assert parse_npu_smi(text) == []


class Failed(Exception):
    pass


def refuse(*_: object) -> Any:
    raise Failed("Not Supported")


def library(**changes: Any) -> Any:
    """Answers as pynvml does, for a host with one device that has one MIG part."""
    sizes = {"card": SimpleNamespace(total=80 * GIB, used=GIB), "part": SimpleNamespace(total=10 * GIB, used=0)}
    functions = {
        "NVMLError": Failed,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"550.1",
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: "card",
        "nvmlDeviceGetMemoryInfo": sizes.__getitem__,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=25),
        "nvmlDeviceGetName": lambda handle: "H100",
        "nvmlDeviceGetUUID": {"card": "GPU-1", "part": "MIG-1"}.__getitem__,
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 2,
        "nvmlDeviceGetMigDeviceHandleByIndex": lambda handle, part: "part" if part == 0 else refuse(),
    }
    return SimpleNamespace(**functions | changes)


def test_nvml_with_mig_parts() -> None:
    card, part = read_nvml(library())
    assert (card.id, card.uuid, card.driver, card.utilization) == ("0", "GPU-1", "550.1", 0.25)
    assert (part.id, part.memory_bytes, part.name) == ("MIG-1", 10 * GIB, "H100 MIG")


def test_nvml_without_what_the_device_does_not_have() -> None:
    (card,) = read_nvml(library(nvmlDeviceGetUtilizationRates=refuse, nvmlDeviceGetMaxMigDeviceCount=refuse))
    assert card.utilization is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "NVIDIA: 2 devices"),
        ({"nvmlInit": refuse}, "NVIDIA: Not Supported"),
        ({"nvmlDeviceGetCount": refuse}, "NVIDIA: Not Supported"),
    ],
)
def test_what_was_tried_is_told(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], told: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library(**changes))
    assert told in find_devices().looked


def test_no_library_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = find_devices()
    assert any("nvidia-ml-py is not installed" in line for line in found.looked)
    host = found.devices[-1]
    assert (host.id, host.kind) == ("cpu", DeviceKind.CPU)
    assert host.memory_bytes > (host.used_bytes or 0) > 0


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (f"cat <<'END'\n{NPU_SMI}\nEND", "Ascend: 3 devices"),
        ("exit 3", "Ascend: npu-smi ended with 3"),
    ],
)
def test_npu_smi_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str) -> None:
    program = tmp_path / "npu-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert told in find_devices().looked


def test_npu_smi_that_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "npu-smi"
    program.write_text("no program")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert any(line.startswith("Ascend: npu-smi: ") for line in find_devices().looked)


def test_devices_go_by_all_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library())
    names = [name for name, _, _ in find_devices().memory()]
    assert names[:3] == ["0", "GPU-1", "MIG-1"]
