"""Everything that is checked before an engine is started: ports, device memory, what engines cannot do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from workers.devices import Device, Found, find_devices
from workers.instance_checks import InstanceFault
from workers.instances import HOST_DEVICE, DeviceKind, Instance, WorkersFile
from workers.launch import device_kind, refusals
from workers.ledger import MemoryLedger, Model, device_memory, memory_ledger
from workers.listening import listening
from workers.model_files import UnknownModelError, known_models, load_model
from workers.model_shape import ModelError
from workers.portplan import Clash, Listening, claims_of, clashes
from workers.units import show_bytes
from workers.yamldoc import show_path


@dataclass(frozen=True, slots=True)
class Preflight:
    """Both ledgers and what is wrong with them."""

    file: WorkersFile
    taken: tuple[Listening, ...]
    clashes: tuple[Clash, ...]
    memory: MemoryLedger
    faults: tuple[str, ...]  # each one line with the path it is about; nothing may start with one
    warnings: tuple[str, ...]


def preflight(
    file: WorkersFile, *, our_ports: Collection[int] = (), find: Callable[[], Found] = find_devices
) -> Preflight:
    """Hold a file against itself and this host. `our_ports`: of instances that run already, by this supervisor.

    Reads model directories and asks drivers, so it takes its time; it starts and changes nothing.
    """
    spans = [(claim.first, claim.last) for one in file.instances for claim in claims_of(one)]
    taken = tuple(listening(spans, ours=our_ports))
    found = tuple(clashes(file.instances, taken))
    models = {one.name: _model(one) for one in file.instances if one.device}
    seen = find()
    kinds = {device: device_kind(one, file) for one in file.instances for device in one.device}
    known = device_memory(file, seen.memory(kinds))
    memory = memory_ledger(file, known, models)
    faults = [f"ports: {clash}" for clash in found]
    faults += map(_told, memory.faults)
    for index, one in enumerate(file.instances):
        faults += [f"instances[{index}].{field}: {why}" for field, why in refusals(one)]
    warnings = list(map(_told, memory.warnings))
    faults += _two_names(file, seen)
    if not our_ports:
        warnings += _in_use(memory, seen.meant(kinds))
    if any(device not in known for one in file.instances for device in one.device):
        warnings += [f"devices looked for: {line}" for line in seen.looked]
    if any(isinstance(model, _UnknownModelError) for model in models.values()):
        warnings.append(f"models known by name: {', '.join(known_models())}")
    return Preflight(file, taken, found, memory, tuple(faults), tuple(warnings))


def _two_names(file: WorkersFile, seen: Found) -> list[str]:
    """Devices that instances call by index here and by UUID there, and names that mean two devices."""
    used = {name for one in file.instances for name in one.device}
    meant: dict[str, DeviceKind] = {}
    mixed = {
        name
        for one in file.instances
        for name in one.device
        if meant.setdefault(name, device_kind(one, file)) is not device_kind(one, file)
    }
    both = [f"device {name} is meant of two makers; call the NVIDIA device by its UUID" for name in sorted(mixed)]
    twice = [one for one in seen.devices if one.uuid and one.uuid != one.id and {one.id, one.uuid} <= used]
    return both + [f"device {one.id} is {one.uuid}, too; call it by one of the two everywhere" for one in twice]


def _in_use(memory: MemoryLedger, devices: Mapping[str, Device]) -> list[str]:
    """Devices that others have filled so far that the plan does not fit beside them; the host's memory always is."""
    used = {name: one.used_bytes or 0 for name, one in devices.items() if name != HOST_DEVICE}
    return [
        f"device {total.device}: {show_bytes(used[total.device])} of {show_bytes(total.memory)} are in use now,"
        f" and {show_bytes(total.planned)} are planned; end what holds it, or plan with less"
        for total in memory.totals
        if total.planned <= total.memory < total.planned + used.get(total.device, 0)
    ]


def _told(fault: InstanceFault) -> str:
    return f"{show_path(('instances', fault.index, *fault.path))}: {fault.message}"


class _UnknownModelError(ModelError):
    """A name that no model is known by, told without all those that are."""


def _model(instance: Instance) -> Model:
    try:
        return load_model(instance.model_path)
    except UnknownModelError as error:
        return _UnknownModelError(error.short)  # the known ones are told once for all instances
    except ModelError as error:
        return error
