"""The two ledgers and the command lines as tables for people."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from workers.instances import Instance
from workers.ledger import MemoryLedger
from workers.plain_tables import new_table
from workers.portplan import Clash, Listening, claims_of, clashes
from workers.units import show_bytes


def port_table(instances: Iterable[Instance], listening: Iterable[Listening] = ()) -> tuple[Table, list[Clash]]:
    """Every port of every instance with its state, and the clashes."""
    instances, listening = list(instances), list(listening)
    found = clashes(instances, listening)
    wrong: dict[tuple[str, str], str] = {}
    for clash in found:
        for one, other in ((clash.one, clash.two), (clash.two, clash.one)):
            wrong.setdefault((one.owner, one.purpose), f"also {other.owner}: {other.purpose}")
    table = new_table("#port", "instance", "for", "state", title="Ports", folds=True)
    claims = [claim for instance in instances for claim in claims_of(instance)]
    for claim in sorted(claims, key=lambda claim: claim.first):
        ports = str(claim.first) if claim.first == claim.last else f"{claim.first}-{claim.last}"
        table.add_row(ports, claim.owner, claim.purpose, wrong.get((claim.owner, claim.purpose), "free"))
    return table, found


def memory_tables(ledger: MemoryLedger) -> tuple[Table, Table]:
    """What each instance takes on each of its devices, and what that leaves of each device."""
    each = new_table(
        *("instance", "device", "#weights", "#KV", "#activations", "#runtime", "#total", "#share"),
        *("#KV tokens", "#longest", "#sure"),
        title="Device memory, on each device of the instance",
        least=("activations", "runtime", "share", "sure", "weights", "longest", "device"),
    )
    for row in ledger.rows:
        room = row.room
        each.add_row(
            row.instance,
            ", ".join(row.devices),
            show_bytes(row.weights),
            show_bytes(row.kv),
            show_bytes(row.overhead.activations),
            show_bytes(row.overhead.runtime + row.overhead.graphs),
            show_bytes(row.total),
            f"{row.share:.3f}",
            "?" if room is None else f"{room.kv_tokens:,}",
            "?" if room is None else f"{room.longest:,}",
            "?" if room is None else f"{room.guaranteed:,}",
        )
    devices = new_table(
        *("device", "name", "#memory", "#reserve", "#planned", "#left"), title="Devices", least=("reserve",), folds=True
    )
    for total in ledger.totals:
        amounts = (total.memory, total.reserve, total.planned, total.left)
        devices.add_row(total.device, total.name, *map(show_bytes, amounts))
    return each, devices
