"""What devices this host has and how busy they are: NVML for NVIDIA, `npu-smi` for Ascend, the host's own memory.

No device, no driver or no library is an answer too: `looked` says in one line what was tried.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from workers.instances import DeviceKind
from workers.units import MIB

NPU_SMI_TIMEOUT_S: Final = 10.0
MAX_DEVICES: Final = 64


@dataclass(frozen=True, slots=True)
class Device:
    """A device as it is now."""

    id: str
    kind: DeviceKind
    name: str
    memory_bytes: int
    used_bytes: int | None = None
    utilization: float | None = None  # share of time in which it computed, 0 … 1
    uuid: str = ""
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """All devices, and what was tried to find them."""

    devices: tuple[Device, ...]
    looked: tuple[str, ...]

    def meant(self, kinds: Mapping[str, DeviceKind] = MappingProxyType({})) -> dict[str, Device]:
        """Each device under all names that it goes by. `kinds`: whose is meant by a name; every maker counts from 0."""
        return {
            name: one
            for one in self.devices
            for name in (one.id, one.uuid)
            if name and kinds.get(name, one.kind) is one.kind
        }

    def memory(self, kinds: Mapping[str, DeviceKind] = MappingProxyType({})) -> list[tuple[str, int, str]]:
        """(id, bytes, name) under each name that a device goes by."""
        return [(name, one.memory_bytes, one.name) for name, one in self.meant(kinds).items()]


def find_devices() -> Found:
    """Ask all that may know. Never raises for a device that does not answer."""
    devices: list[Device] = []
    looked: list[str] = []
    for ask in (_nvidia, _ascend, _host):
        found, told = ask()
        devices += found
        looked.append(told)
    return Found(tuple(devices), tuple(looked))


def _nvidia() -> tuple[list[Device], str]:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return [], "NVIDIA: the package nvidia-ml-py is not installed (extra 'gpu')"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [], f"NVIDIA: {error}"
    try:
        found = read_nvml(nvml)
    except nvml.NVMLError as error:
        return [], f"NVIDIA: {error}"
    finally:
        nvml.nvmlShutdown()
    return found, f"NVIDIA: {len(found)} devices"


def read_nvml(nvml: Any) -> list[Device]:
    """Devices and their MIG parts, by the functions of an initialised `pynvml`."""
    driver = _text(nvml.nvmlSystemGetDriverVersion())
    found: list[Device] = []
    for index in range(min(nvml.nvmlDeviceGetCount(), MAX_DEVICES)):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        rates = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        busy = None if rates is None else rates.gpu / 100
        name = _text(nvml.nvmlDeviceGetName(handle))
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        found.append(
            Device(str(index), DeviceKind.NVIDIA, name, int(memory.total), int(memory.used), busy, uuid, driver)
        )
        for part in range(_ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            mig = _ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, part)
            if mig is None:
                continue  # the place is empty
            memory = nvml.nvmlDeviceGetMemoryInfo(mig)
            found.append(
                Device(
                    _text(nvml.nvmlDeviceGetUUID(mig)),
                    DeviceKind.NVIDIA,
                    f"{name} MIG",
                    int(memory.total),
                    int(memory.used),
                    driver=driver,
                )
            )
    return found


def _ask(nvml: Any, question: Callable[..., Any], *about: Any) -> Any:
    """The answer; None where the device has none to give (no MIG, no counter on this model)."""
    try:
        return question(*about)
    except nvml.NVMLError:
        return None


def _text(value: object) -> str:
    """Older versions of pynvml answer with bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _ascend() -> tuple[list[Device], str]:
    program = shutil.which("npu-smi")
    if program is None:
        return [], "Ascend: there is no npu-smi"
    try:
        done = subprocess.run([program, "info"], capture_output=True, timeout=NPU_SMI_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"Ascend: npu-smi: {error}"
    if done.returncode != 0:
        return [], f"Ascend: npu-smi ended with {done.returncode}"
    found = parse_npu_smi(done.stdout.decode(errors="replace"))
    return found, f"Ascend: {len(found)} devices"


_VERSION: Final = re.compile(r"npu-smi\s+(\S+)")
# First line of a device: its number and name. Second: the chip, AICore % and two "used / total" in MB, HBM the last.
_FIRST: Final = re.compile(r"\|\s*(\d+)\s+([^|]*?)\s*\|\s*([^|]*?)\s*\|[^|]*\|")
_SECOND: Final = re.compile(r"\|\s*(\d+)\s*(?:\d+\s*)?\|\s*([0-9A-Fa-f:.]+)\s*\|\s*(\d+)\s([^|]*)\|")
_PAIR: Final = re.compile(r"(\d+)\s*/\s*(\d+)")


def parse_npu_smi(text: str) -> list[Device]:
    """Devices in the table of `npu-smi info`; rows that look otherwise are passed over."""
    version = _VERSION.search(text)
    found: list[Device] = []
    first: re.Match[str] | None = None
    for line in text.splitlines():
        second = _SECOND.match(line)
        if second is not None and first is not None:
            pairs = [(int(used), int(total)) for used, total in _PAIR.findall(second[4])]
            pairs = [pair for pair in pairs if pair[1] > 0]
            if pairs:
                used, total = pairs[-1]
                found.append(
                    Device(
                        first[1],
                        DeviceKind.ASCEND,
                        first[2],
                        total * MIB,
                        used * MIB,
                        int(second[3]) / 100,
                        driver=version[1] if version is not None else "",
                    )
                )
            first = None
        elif (match := _FIRST.match(line)) is not None:
            first = match
    return found[:MAX_DEVICES]


def _host() -> tuple[list[Device], str]:
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    return [Device("cpu", DeviceKind.CPU, "host memory", total, total - free)], "host: 1 device (cpu)"
