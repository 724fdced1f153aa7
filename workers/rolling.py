"""What differs between two files, and how a changed instance can stand beside the one it replaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.instances import Instance, PortPool, WorkersFile
from workers.listening import listening
from workers.portplan import claims_of, free_port

TIMING = frozenset(
    {
        *("start_timeout_s", "hang_timeout_s", "drain_timeout_s", "stop_grace_s"),
        *("warmup_prompts", "canary_pool", "canary_s"),
    }
)
"""Fields that only the supervisor reads: a change of them needs no new process."""

PORTS = ("port", "metrics_port", "debug_port", "agent_port", "dist_init_port")
TRIES = 64  # ports that others may hold, one after another


@dataclass(frozen=True, slots=True)
class Change:
    """One instance that is to be another; `spec` None: that is to go."""

    name: str
    spec: Instance | None


def changes(now: Mapping[str, Instance], wanted: WorkersFile) -> Iterator[Change]:
    """What has to happen, in an order that never needs more room than both files: leave, change, come."""
    named = {spec.name: spec for spec in wanted.instances}
    yield from (Change(name, None) for name in now if name not in named)
    yield from (Change(name, spec) for name, spec in named.items() if name in now and now[name] != spec)
    yield from (Change(name, spec) for name, spec in named.items() if name not in now)


def only_timing(one: Instance, other: Instance) -> bool:
    """Whether the two differ in nothing that a running engine would notice."""
    return one.model_dump(exclude=set(TIMING)) == other.model_dump(exclude=set(TIMING))


def moved(spec: Instance, running: Sequence[Instance], pool: PortPool) -> Instance | None:
    """`spec` with ports that nobody has, where the ones it names are in use; None when there are none left."""
    taken = [(claim.first, claim.last) for one in running for claim in claims_of(one)]
    held = list(taken)
    taken += [(claim.first, claim.last) for claim in claims_of(spec)]

    def is_held(first: int, count: int = 1) -> bool:
        return any(low <= first + count - 1 and first <= high for low, high in held)

    def take(first: int, count: int = 1) -> int | None:
        for _ in range(TRIES):
            port = free_port(first, taken, count)
            if port is None:
                return None
            taken.append((port, port + count - 1))
            if not listening([(port, port + count - 1)]):
                return port
        return None

    update: dict[str, Any] = {}
    for field in PORTS:
        port = getattr(spec, field)
        if port is not None and is_held(port):
            update[field] = take(pool.first)
    others = {name: take(pool.first) if is_held(port) else port for name, port in spec.other_ports.items()}
    update["other_ports"] = others
    span = spec.internal_ports
    if span is not None and is_held(span.first, span.count):
        first = take(pool.internal_first, span.count)
        update["internal_ports"] = None if first is None else span.model_copy(update={"first": first})
    if None in update.values() or None in others.values():
        return None
    return spec.model_copy(update=update)
