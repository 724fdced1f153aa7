"""From an instance of `workers.yaml` to what is executed: command line, environment, files. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from workers.engines.adapters import ADAPTERS
from workers.engines.base import Launch, Planned
from workers.instances import HOST_DEVICE, DeviceKind, Engine, Instance, WorkersFile


@dataclass(frozen=True, slots=True)
class Start:
    """What one start of an engine consists of."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]  # added to the supervisor's own
    files: Mapping[str, bytes]  # by name, in `directory`
    directory: str
    metrics_url: str | None = None  # where it differs from the instance's URL


def start_of(instance: Instance, file: WorkersFile, directory: str, planned: Planned | None = None) -> Start:
    """The start of `instance`; `directory` is its own, `planned` its part of the memory ledger.

    See `refusals` for what must have been checked before.
    """
    adapter = ADAPTERS[instance.engine]
    launch = replace(launch_of(instance, directory), planned=planned)
    port = adapter.metrics_port(launch)
    return Start(
        argv=adapter.command(launch),
        environment={
            **device_environment(instance, file),
            **adapter.environment(launch),
            **instance.env,
        },
        files=adapter.files(launch),
        directory=directory,
        metrics_url=None if port is None else instance.model_copy(update={"port": port}).url,
    )


def launch_of(instance: Instance, directory: str) -> Launch:
    """The instance in the words that engines' adapters understand."""
    return Launch(
        model=instance.model_path,
        served_name=instance.served_name,
        host=instance.host,
        port=instance.port,
        max_model_len=instance.max_model_len,
        max_num_seqs=instance.max_num_seqs,
        max_num_batched_tokens=instance.max_num_batched_tokens,
        kv_bytes=instance.kv_bytes,
        orders_by_priority=instance.priority_scheduling,
        extra=instance.extra_flags,
        name=instance.name,
        pool=instance.pool,
        program=instance.program,
        devices=len(instance.device),
        device_ids=instance.device,
        memory_share=instance.memory_share,
        prefix_caching=instance.prefix_caching,
        chunked_prefill=instance.chunked_prefill,
        quantization=instance.quantization,
        dtype=instance.dtype,
        kv_cache_dtype=instance.kv_cache_dtype,
        block_size=instance.block_size,
        tensor_parallel=instance.tensor_parallel,
        pipeline_parallel=instance.pipeline_parallel,
        dist_init_port=instance.dist_init_port,
        debug_port=instance.debug_port,
        metrics_port=instance.metrics_port,
        first_internal_port=None if instance.internal_ports is None else instance.internal_ports.first,
        ports=instance.other_ports,
        directory=directory,
    )


_FIELDS = {"orders_by_priority": "priority_scheduling"}  # of Launch -> of workers.yaml, where they differ


def refusals(instance: Instance) -> list[tuple[str, str]]:
    """(field, why) of everything that is asked of the engine and that it has no way to take."""
    adapter = ADAPTERS[instance.engine]
    launch = launch_of(instance, "")
    return [
        (_FIELDS.get(name, name), f"{adapter.name} has no way to take this; leave it out")
        for name in sorted(adapter.cannot)
        if getattr(launch, name) not in (None, False, ())
    ]


def device_environment(instance: Instance, file: WorkersFile) -> dict[str, str]:
    """The variables that show an engine its devices and nothing else.

    Indices are those of the bus, as the drivers' tools count, not the fastest-first order that CUDA has by itself.
    """
    if not instance.device:
        return {}
    if instance.device == (HOST_DEVICE,):
        return {"CUDA_VISIBLE_DEVICES": ""}
    listed = ",".join(instance.device)
    if device_kind(instance, file) is DeviceKind.ASCEND:
        return {"ASCEND_RT_VISIBLE_DEVICES": listed}
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": listed}
    if instance.compute_share is not None:
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{instance.compute_share * 100:g}"
    return environment


def device_kind(instance: Instance, file: WorkersFile) -> DeviceKind:
    """The kind of its devices: as the file says, else what the engine runs on."""
    if HOST_DEVICE in instance.device:
        return DeviceKind.CPU
    kinds = {spec.id: spec.kind for spec in file.shared.devices}
    default = DeviceKind.ASCEND if instance.engine is Engine.MINDIE else DeviceKind.NVIDIA
    return kinds.get(instance.device[0], default)
