"""Everything that is checked before an engine is started: ports, device memory, what engines cannot do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workers.devices import Found, find_devices
from workers.instance_checks import InstanceFault
from workers.instances import Instance, WorkersFile
from workers.launch import refusals
from workers.ledger import MemoryLedger, Model, device_memory, memory_ledger
from workers.listening import listening
from workers.model_files import load_model
from workers.model_shape import ModelError
from workers.portplan import Clash, Listening, claims_of, clashes
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
    file: WorkersFile, *, our_ports: Iterable[int] = (), find: Callable[[], Found] = find_devices
) -> Preflight:
    """Hold a file against itself and this host. `our_ports`: of instances that run already, by this supervisor.

    Reads model directories and asks drivers, so it takes its time; it starts and changes nothing.
    """
    spans = [(claim.first, claim.last) for one in file.instances for claim in claims_of(one)]
    taken = tuple(listening(spans, ours=our_ports))
    found = tuple(clashes(file.instances, taken))
    models = {one.name: _model(one) for one in file.instances if one.device}
    seen = find()
    known = device_memory(file, seen.memory())
    memory = memory_ledger(file, known, models)
    faults = [f"ports: {clash}" for clash in found]
    faults += map(_told, memory.faults)
    for index, one in enumerate(file.instances):
        faults += [f"instances[{index}].{field}: {why}" for field, why in refusals(one)]
    warnings = list(map(_told, memory.warnings))
    if any(device not in known for one in file.instances for device in one.device):
        warnings += [f"devices looked for: {line}" for line in seen.looked]
    return Preflight(file, taken, found, memory, tuple(faults), tuple(warnings))


def _told(fault: InstanceFault) -> str:
    return f"{show_path(('instances', fault.index, *fault.path))}: {fault.message}"


def _model(instance: Instance) -> Model:
    try:
        return load_model(instance.model_path)
    except ModelError as error:
        return error
