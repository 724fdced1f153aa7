"""What must hold between the values of `workers.yaml`: names, ports, devices, shares, flags that contradict fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workers.flags import MANAGED_VARIABLES, flag_faults
from workers.instances import Engine, Mode, WorkersFile
from workers.portplan import clashes
from workers.yamldoc import Path, closest


@dataclass(frozen=True, slots=True)
class InstanceFault:
    """A fault of the instance at `index`, in its field at `path`."""

    index: int
    path: Path
    message: str
    suggestion: str | None = None


def check(file: WorkersFile) -> list[InstanceFault]:
    """All faults."""
    return [*_names(file), *_flags(file), *_sizes(file), *_devices(file), *_shares(file), *_ports(file)]


def _names(file: WorkersFile) -> Iterator[InstanceFault]:
    first: dict[str, int] = {}
    for index, one in enumerate(file.instances):
        if first.setdefault(one.name, index) != index:
            yield InstanceFault(index, ("name",), f"{one.name} is the name of instances[{first[one.name]}] too")


def _flags(file: WorkersFile) -> Iterator[InstanceFault]:
    for index, one in enumerate(file.instances):
        yield from flags_and_env(
            index, {"engine": one.engine, "extra_flags": list(one.extra_flags), "env": dict(one.env)}
        )


def flags_and_env(index: int, values: Mapping[str, Any]) -> Iterator[InstanceFault]:
    """Flags and variables that a field sets, from values that may be wrong in other ways."""
    words, env, engine = values.get("extra_flags", []), values.get("env", {}), values.get("engine", Engine.VLLM)
    if isinstance(words, list) and all(isinstance(word, str) for word in words) and engine in list(Engine):
        for fault in flag_faults(Engine(engine), words):
            yield InstanceFault(index, ("extra_flags", fault.index), fault.message)
    for name in env if isinstance(env, dict) else ():
        if name in MANAGED_VARIABLES:
            field = MANAGED_VARIABLES[name]
            yield InstanceFault(index, ("env", name), f"is set from the field {field}; write it there instead")


def _sizes(file: WorkersFile) -> Iterator[InstanceFault]:
    for index, one in enumerate(file.instances):
        if one.memory_share is not None and one.kv_bytes is not None:
            yield InstanceFault(index, ("kv_bytes",), "contradicts memory_share: it replaces it; keep one of the two")
        batched, seqs = one.max_num_batched_tokens, one.max_num_seqs
        if batched is not None and seqs is not None and batched < seqs:
            message = (
                f"must be at least max_num_seqs ({seqs}): each running sequence takes a token a step, got {batched}"
            )
            yield InstanceFault(index, ("max_num_batched_tokens",), message)
        length = one.max_model_len
        if one.chunked_prefill is False and batched is not None and length is not None and batched < length:
            message = f"must be at least max_model_len ({length}) without chunked_prefill, got {batched}"
            yield InstanceFault(index, ("max_num_batched_tokens",), message)


def _devices(file: WorkersFile) -> Iterator[InstanceFault]:
    known = [device.id for device in file.shared.devices]
    for index, one in enumerate(file.instances):
        for place, device in enumerate(one.device):
            if known and device not in known:
                message = f"names no device of shared.devices, got {device!r}"
                yield InstanceFault(index, ("device", place), message, closest(device, known))
        if len(set(one.device)) < len(one.device):
            yield InstanceFault(index, ("device",), f"names a device twice: {', '.join(one.device)}")
        if one.engine is Engine.SIMULATOR and not one.device:
            continue
        if len(one.device) != one.ranks:
            message = (
                f"tensor_parallel {one.tensor_parallel} × pipeline_parallel {one.pipeline_parallel} needs"
                f" {one.ranks} devices, got {len(one.device)}"
            )
            yield InstanceFault(index, ("device",), message)


def _shares(file: WorkersFile) -> Iterator[InstanceFault]:
    """Shares of one device that add up to more than there is. Sizes in bytes are the memory ledger's business."""
    if file.shared.memory.mode is not Mode.PARTITIONED:
        return
    allowed = 1 - file.shared.memory.reserve
    taken: dict[str, float] = defaultdict(float)
    owners: dict[str, list[str]] = defaultdict(list)
    for index, one in enumerate(file.instances):
        for device in one.device:
            if one.memory_share is None:
                continue
            taken[device] += one.memory_share
            owners[device].append(f"{one.name} {one.memory_share:g}")
            # Shares are decimal fractions: 0.35 + 0.6 is 0.95, whatever binary floats say.
            if round(taken[device], 9) > round(allowed, 9):
                message = (
                    f"shares of device {device} add up to {taken[device]:.4g} ({', '.join(owners[device])});"
                    f" at most {allowed:.4g} (1 - shared.memory.reserve) is there"
                )
                yield InstanceFault(index, ("memory_share",), message)


def _ports(file: WorkersFile) -> Iterator[InstanceFault]:
    index = {one.name: place for place, one in reversed(list(enumerate(file.instances)))}
    for clash in clashes(file.instances):
        yield InstanceFault(index[clash.two.owner], tuple(clash.two.purpose.split(".", 1)), str(clash))
