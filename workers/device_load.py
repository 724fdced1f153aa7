"""How busy and how full some of this host's devices are, as their driver tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workers.devices import Found, find_devices
from workers.observation import DeviceLoad


def device_load(wanted: Sequence[str], kind: str = "", find: Callable[[], Found] = find_devices) -> DeviceLoad:
    """The load of the devices with these ids or UUIDs. Blocks while drivers answer; what nobody tells is None.

    `kind`: whose devices they are, since every maker counts from 0; empty: of anyone.
    """
    mine = [
        device
        for device in find().devices
        if (device.id in wanted or (device.uuid and device.uuid in wanted)) and kind in ("", device.kind)
    ]
    if not mine:
        return DeviceLoad()
    busy = [device.utilization for device in mine if device.utilization is not None]
    used = [device.used_bytes for device in mine if device.used_bytes is not None]
    return DeviceLoad(
        utilization=max(busy, default=None),
        used_bytes=sum(used) if len(used) == len(mine) else None,
        total_bytes=sum(device.memory_bytes for device in mine),
        driver=mine[0].driver,
    )
