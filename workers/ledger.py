"""The device-memory ledger: who gets how much of which device, and whether it fits, before anything starts. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import Final

from workers.capacity import (
    DEFAULT_BLOCK_SIZE,
    Capacity,
    EngineShape,
    Overhead,
    capacity,
    explain_shortage,
    kv_layout,
    overhead,
    weights_bytes,
)
from workers.engines.base import Planned
from workers.hardware import find_card
from workers.instance_checks import InstanceFault
from workers.instances import HOST_DEVICE, Engine, Instance, Mode, WorkersFile
from workers.model_config import DTYPES, kv_value_bytes, named_quantization
from workers.model_shape import ModelError, ModelShape
from workers.units import GIB, show_bytes

NO_GRAPHS: Final = frozenset({"--enforce-eager", "--enforce_eager", "--disable-cuda-graph"})
GRAPH_ENGINES: Final = frozenset({Engine.VLLM, Engine.SGLANG, Engine.TRTLLM})

Model = ModelShape | ModelError
"""A model's shape, or why there is none."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """All of a device's memory, and what it is called."""

    bytes: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """What one instance takes on each of its devices, in bytes."""

    instance: str
    devices: tuple[str, ...]
    weights: int
    kv: int
    overhead: Overhead
    share: float  # of the smallest of its devices
    engine: EngineShape
    room: Capacity | None  # None: the model's shape is not known

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.overhead.total


@dataclass(frozen=True, slots=True)
class DeviceTotal:
    """One device: what there is, what nobody may plan with, what is planned."""

    device: str
    name: str
    memory: int
    reserve: int
    planned: int

    @property
    def left(self) -> int:
        """What could still be planned with; negative: over-committed."""
        return self.memory - self.reserve - self.planned


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Rows by instance, totals by device, what must not start and what is only told."""

    rows: tuple[Row, ...]
    totals: tuple[DeviceTotal, ...]
    faults: tuple[InstanceFault, ...]
    warnings: tuple[InstanceFault, ...]

    def row(self, instance: str) -> Row | None:
        """The row of an instance; None where it takes nothing that can be known."""
        return next((row for row in self.rows if row.instance == instance), None)

    def planned(self, instance: str) -> Planned | None:
        """What the instance is to be started with. None where there is no row, and for the host's own memory: what is
        stated of that is seldom all that the engine sees."""
        row = self.row(instance)
        if row is None or row.devices == (HOST_DEVICE,):
            return None
        own = [total for total in self.totals if total.device in row.devices]
        layout = None if row.room is None else row.room.layout
        tokens = None
        if layout is not None and layout.bytes_per_token and not layout.fixed_bytes_per_request:
            tokens = row.kv // layout.bytes_per_block * layout.block_size
        return Planned(
            device=min(total.memory for total in own),
            free=max(row.total, min(total.memory - total.planned + row.total for total in own)),
            weights=row.weights,
            kv=row.kv,
            runtime=row.overhead.runtime,
            total=row.total,
            kv_tokens=tokens,
        )


NOTHING_PLANNED: Final = MemoryLedger((), (), (), ())


def default_batch(device_bytes: int, device_name: str = "") -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of a vLLM 0.32 API server that nobody told."""
    if device_bytes >= 160 * GIB:
        return 16384, 1024
    if device_bytes >= 70 * GIB and "a100" not in device_name.lower():
        return 8192, 1024
    return 2048, 256


def engine_shape(instance: Instance, model: ModelShape | None, device: DeviceMemory) -> EngineShape:
    """What decides the instance's memory, with the engine's defaults for what is left out. Raises ModelError."""
    tokens, seqs = default_batch(device.bytes, device.name)
    return EngineShape(
        tensor_parallel=instance.tensor_parallel,
        pipeline_parallel=instance.pipeline_parallel,
        block_size=instance.block_size or DEFAULT_BLOCK_SIZE,
        kv_value_bytes=kv_value_bytes(model, instance.kv_cache_dtype) if model is not None else 2,
        max_num_batched_tokens=instance.max_num_batched_tokens or tokens,
        max_num_seqs=instance.max_num_seqs or seqs,
        graphs=instance.engine in GRAPH_ENGINES and not NO_GRAPHS & set(instance.extra_flags),
    )


def as_served(instance: Instance, model: ModelShape) -> ModelShape:
    """The model in the types that the instance asks for. Raises ModelError for a type nobody knows."""
    if instance.dtype is not None:
        if instance.dtype not in DTYPES:
            raise ModelError(f"dtype: {instance.dtype!r} is not known; there are {', '.join(DTYPES)}")
        if instance.dtype != "auto":
            model = replace(model, value_bytes=DTYPES[instance.dtype])
    if instance.quantization is not None and model.quantization is None:
        # Quantised while loading: what the files hold no longer counts.
        model = replace(model, quantization=named_quantization(instance.quantization), stored_bytes=None)
    return model


def memory_ledger(file: WorkersFile, devices: Mapping[str, DeviceMemory], models: Mapping[str, Model]) -> MemoryLedger:
    """Hold all instances against their devices. `models`: by instance name."""
    return _Ledger(file, devices, models).close()


@dataclass(slots=True)
class _Ledger:
    file: WorkersFile
    devices: Mapping[str, DeviceMemory]
    models: Mapping[str, Model]
    rows: list[Row] = field(default_factory=list)
    faults: list[InstanceFault] = field(default_factory=list)
    warnings: list[InstanceFault] = field(default_factory=list)

    def close(self) -> MemoryLedger:
        planned: dict[str, int] = dict.fromkeys(self.devices, 0)
        shares = self._shares()
        for index, instance in enumerate(self.file.instances):
            if not instance.device:
                continue  # a simulator takes no device
            unknown = [device for device in instance.device if device not in self.devices]
            if unknown:
                message = f"memory of device {unknown[0]} is not known; state it, or its card's name, in shared.devices"
                self._fault(index, "device", message)
                continue
            row = self._row(index, instance, shares.get(instance.name))
            if row is None:
                continue
            self.rows.append(row)
            for device in instance.device:
                planned[device] += row.total
                self._over_committed(index, device, planned[device])
        return MemoryLedger(
            tuple(self.rows),
            tuple(self._total(device, amount) for device, amount in planned.items()),
            tuple(self.faults),
            tuple(self.warnings),
        )

    def _fault(self, index: int, path: str, message: str) -> None:
        self.faults.append(InstanceFault(index, (path,), message))

    def _total(self, device: str, planned: int) -> DeviceTotal:
        memory = self.devices[device]
        reserve = floor(memory.bytes * self.file.shared.memory.reserve)
        return DeviceTotal(device, memory.name, memory.bytes, reserve, planned)

    def _shares(self) -> dict[str, float]:
        """Shares by instance; who has neither a share nor a size gets what the others leave, if it is the only one."""
        shares: dict[str, float] = {}
        free = 1 - self.file.shared.memory.reserve
        for index, one in enumerate(self.file.instances):
            if one.memory_share is not None:
                shares[one.name] = one.memory_share
                continue
            if one.kv_bytes is not None or not one.device:
                continue
            beside = [
                other for other in self.file.instances if other is not one and set(other.device) & set(one.device)
            ]
            if all(other.memory_share is not None for other in beside):
                taken = [
                    sum(other.memory_share or 0 for other in beside if device in other.device) for device in one.device
                ]
                shares[one.name] = round(free - max(taken), 9)
            else:
                others = ", ".join(other.name for other in beside if other.memory_share is None)
                message = f"is needed beside {others} on device {', '.join(one.device)}: memory_share or kv_bytes"
                self._fault(index, "memory_share", message)
        return shares

    def _row(self, index: int, instance: Instance, share: float | None) -> Row | None:
        found = self.models[instance.name]
        smallest = min((self.devices[device] for device in instance.device), key=lambda device: device.bytes)
        try:
            model = as_served(instance, found) if isinstance(found, ModelShape) else None
            engine = engine_shape(instance, model, smallest)
            layout = kv_layout(model, engine) if model is not None else None
        except ModelError as error:
            self._fault(index, "model_path", str(error))
            return None
        if model is None and instance.weights_bytes is None:
            self._fault(index, "model_path", f"{found}; or state weights_bytes")
            return None
        if share is None and instance.kv_bytes is None:
            return None  # told by _shares
        weights = instance.weights_bytes
        if weights is None:
            assert model is not None
            weights = weights_bytes(model, engine)
        over = overhead(model, engine) if model is not None else Overhead(GIB, 0, 0)
        granted = floor(smallest.bytes * share) if share is not None else 0
        kv = instance.kv_bytes if instance.kv_bytes is not None else granted - weights - over.total
        if kv <= 0:
            needed = show_bytes(weights + over.total)
            self._fault(
                index,
                "memory_share" if instance.kv_bytes is None else "kv_bytes",
                f"leaves nothing for KV: weights and overhead take {needed}, {show_bytes(granted)} are granted",
            )
            return None
        made_for = model.max_model_len if model is not None else None
        length = instance.max_model_len or made_for
        if length is not None and made_for is not None and length > made_for:
            message = f"{length} tokens are more than the {made_for} that the model was made for; engines refuse that"
            self.warnings.append(InstanceFault(index, ("max_model_len",), message))
        room = None
        if layout is None or length is None:
            why = found if isinstance(found, ModelError) else "the model does not say how long requests may be"
            message = f"KV cannot be checked against max_model_len: {why}"
            self.warnings.append(InstanceFault(index, ("model_path",), message))
        else:
            room = capacity(layout, kv, length)
            if not room.fits:
                self._fault(index, "max_model_len", explain_shortage(room))
        row = Row(instance.name, instance.device, weights, kv, over, 0.0, engine, room)
        return replace(row, share=row.total / smallest.bytes)

    def _over_committed(self, index: int, device: str, planned: int) -> None:
        total = self._total(device, planned)
        if self.file.shared.memory.mode is Mode.PARTITIONED:
            if total.left < 0:
                who = ", ".join(f"{row.instance} {show_bytes(row.total)}" for row in self.rows if device in row.devices)
                self._fault(
                    index,
                    "memory_share" if self.file.instances[index].kv_bytes is None else "kv_bytes",
                    f"device {device} is over-committed by {show_bytes(-total.left)}: {who};"
                    f" {show_bytes(total.memory - total.reserve)} of {show_bytes(total.memory)} can be planned with",
                )
        elif planned > total.memory:
            message = (
                f"device {device} is over-committed: {show_bytes(planned)} are planned of {show_bytes(total.memory)};"
                " instances will fail when all of them fill up"
            )
            self.warnings.append(InstanceFault(index, ("device",), message))


def device_memory(file: WorkersFile, found: Sequence[tuple[str, int, str]]) -> dict[str, DeviceMemory]:
    """Memory by device id: what the file states, else what was `found` (id, bytes, name) on the host, else what a card
    of the stated name has."""
    known = {one: DeviceMemory(size, name) for one, size, name in found}
    for spec in file.shared.devices:
        if spec.memory is not None:
            known[spec.id] = DeviceMemory(spec.memory, spec.name)
        elif spec.id in known and spec.name:
            known[spec.id] = replace(known[spec.id], name=spec.name)
        elif spec.name and spec.id not in known:
            with contextlib.suppress(ValueError):  # a name of their own
                known[spec.id] = DeviceMemory(find_card(spec.name).memory_bytes, spec.name)
    used = {device for one in file.instances for device in one.device} | {spec.id for spec in file.shared.devices}
    return {device: memory for device, memory in known.items() if device in used}
