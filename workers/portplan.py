"""Every port of every instance: those that nobody named are given out, and all are held against each other.

Engines that pick "a free port" bind it, close it and use it later; two that start together pick the same one. So each
instance gets ports of its own before anything starts, a range where the engine counts upwards by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from workers.instances import MAX_PORT, Engine, Instance, PortPool

# Ports that an engine opens besides its API and that it would choose by itself if nobody said.
NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    Engine.SGLANG: ("nccl",),
    Engine.MINDIE: ("management", "metrics"),
}
# Engines that open a range of ports for their own parts.
RANGED: Final = (Engine.VLLM,)


@dataclass(frozen=True, slots=True)
class Claim:
    """Ports first … last that `owner` binds for `purpose` (the field that names them)."""

    owner: str
    purpose: str
    first: int
    last: int

    def __str__(self) -> str:
        ports = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"{ports} ({self.owner}: {self.purpose})"


@dataclass(frozen=True, slots=True)
class Clash:
    """Two that want the same port. `two` may be a process that listens now."""

    one: Claim
    two: Claim

    @property
    def port(self) -> int:
        """The first port that both want."""
        return max(self.one.first, self.two.first)

    def __str__(self) -> str:
        one, two = self.one, self.two
        return f"port {self.port} is wanted by {one.owner} ({one.purpose}) and by {two.owner} ({two.purpose})"


@dataclass(frozen=True, slots=True)
class Listening:
    """A port that is taken now, and who has it: a process's name and id, or what is known."""

    port: int
    owner: str


def claims_of(instance: Instance) -> list[Claim]:
    """Every port that an instance binds."""
    named = {
        "port": instance.port,
        "metrics_port": instance.metrics_port,
        "debug_port": instance.debug_port,
        "agent_port": instance.agent_port,
        "dist_init_port": instance.dist_init_port,
        **{f"other_ports.{purpose}": port for purpose, port in instance.other_ports.items()},
    }
    claims = [Claim(instance.name, purpose, port, port) for purpose, port in named.items() if port is not None]
    if instance.internal_ports is not None:
        span = instance.internal_ports
        claims.append(Claim(instance.name, "internal_ports", span.first, span.last))
    return claims


def clashes(instances: Iterable[Instance], listening: Iterable[Listening] = ()) -> list[Clash]:
    """Every pair that wants the same port, by port: instances among each other and with what listens now."""
    claims = [claim for instance in instances for claim in claims_of(instance)]
    claims += [Claim(one.owner, "listens now", one.port, one.port) for one in listening]
    ordered = sorted(claims, key=lambda claim: claim.first)  # stable: document order among equals
    found: list[Clash] = []
    open_claims: list[Claim] = []
    for claim in ordered:
        open_claims = [one for one in open_claims if one.last >= claim.first]
        for one in open_claims:
            if one.purpose == claim.purpose == "listens now":
                continue
            found.append(Clash(claim, one) if one.purpose == "listens now" else Clash(one, claim))
        open_claims.append(claim)
    return found


def free_port(first: int, taken: Sequence[tuple[int, int]], count: int = 1) -> int | None:
    """The lowest port from `first` on that starts `count` ports outside all `taken` ranges; None: there is none."""
    port = first
    for start, end in sorted(taken):
        if end < port:
            continue
        if start >= port + count:
            break
        port = end + 1
    return port if port + count - 1 <= MAX_PORT else None


def assign_ports(pool: PortPool, drafts: Sequence[dict[str, Any]]) -> None:
    """Give the ports that instances did not name, in document order, around all that they did.

    Works on values that are not checked yet; what is no port is left for the check to tell. Where the pool is used
    up, the field stays away and is told as required.
    """
    taken = [claim for draft in drafts for claim in _named(draft)]
    for draft in drafts:
        engine = draft.get("engine", Engine.VLLM)
        if draft.get("port") is None and (port := _take(pool.first, taken)) is not None:
            draft["port"] = port
        for purpose in NEEDED.get(str(engine), ()):
            others = draft.setdefault("other_ports", {})
            own = draft.get(f"{purpose}_port")
            if own is None and isinstance(others, dict) and purpose not in others:
                port = _take(pool.first, taken)
                if port is not None:
                    draft["other_ports"] = {**others, purpose: port}
        if engine in RANGED and draft.get("internal_ports") is None:
            span = _take(pool.internal_first, taken, pool.internal_stride)
            if span is not None:
                draft["internal_ports"] = {"first": span, "count": pool.internal_stride}
        if "agent_port" not in draft and (port := _take(pool.agent_first, taken)) is not None:
            draft["agent_port"] = port


def _take(first: int, taken: list[tuple[int, int]], count: int = 1) -> int | None:
    port = free_port(first, taken, count)
    if port is not None:
        taken.append((port, port + count - 1))
    return port


def _named(draft: dict[str, Any]) -> list[tuple[int, int]]:
    """Ranges that a draft names, as far as they are numbers."""
    others = draft.get("other_ports")
    values = [draft.get(name) for name in ("port", "metrics_port", "debug_port", "agent_port", "dist_init_port")]
    values += list(others.values()) if isinstance(others, dict) else []
    ranges = [(port, port) for value in values if (port := _number(value)) is not None]
    span = draft.get("internal_ports")
    if isinstance(span, dict) and (first := _number(span.get("first"))) is not None:
        ranges.append((first, first + (_number(span.get("count")) or 64) - 1))
    return ranges


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 5:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
