"""The counters of the host itself: pressure, disks, energy, and all network interfaces with the names they have now."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Collection, Mapping

from manager.host.disk_ceilings import number_of_disk
from manager.host.disk_weights import weighing_of
from manager.host.files import names_in, number_of
from manager.host.registry import HostPaths
from manager.host.resources.counter_texts import disk_lines, pressure_us, total_memory
from manager.host.resources.held_file import HeldFile
from manager.host.resources.link_counters import read_links
from manager.host.resources.rapl_domains import RaplDomains
from manager.model.resource_use import DeviceCounters, HostCounters, LinkCounters, Pressures, Uplink, Weighing

UPLINKS_EVERY = 12
"""Uplinks and their speeds are looked for at every so many readings, and when interfaces come or go."""
_BYTES_PER_MBIT = 125_000.0
_MOST_BYTES = 1 << 18


class HostCounterFiles:
    """Reads the host. ``links`` returns the counters of its interfaces, or raises OSError."""

    def __init__(
        self,
        paths: HostPaths,
        links: Callable[[], Mapping[int, LinkCounters]] = read_links,
        cost: Callable[[], str] = str,
    ) -> None:
        """Nothing is opened yet. ``cost`` returns the text of io.cost.qos."""
        self._paths = paths
        self._links = links
        self._cost = cost
        self._pressures = [HeldFile(paths.pressure / name) for name in ("cpu", "memory", "io")]
        self._diskstats = HeldFile(paths.diskstats)
        self._meminfo = HeldFile(paths.meminfo)
        self._rapl = RaplDomains(paths)
        self._uplinks: tuple[Uplink, ...] = ()
        self._uplinks_unread = 0
        self._indexes: frozenset[int] = frozenset()
        self._whole: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        self._device_names: Mapping[bytes, str] = {}

    def names_of_devices(self) -> Mapping[bytes, str]:
        """Names of disks by ``MAJOR:MINOR``, as of the last reading."""
        if not self._device_names:
            self.read_disks()
        return self._device_names

    def read(self, taps: Collection[int]) -> HostCounters:
        """What was used so far, with the names of the ``taps`` among the interfaces."""
        links: Mapping[int, LinkCounters] | None = None
        with contextlib.suppress(OSError):
            links = self._links()
        if links is not None:
            self._follow_uplinks(frozenset(links))
        disks = self.read_disks()
        named = (index for index in (*taps, *(uplink.index for uplink in self._uplinks)) if index in (links or {}))
        return HostCounters(
            time.monotonic(),
            Pressures(*(pressure_us(file.read() or b"") for file in self._pressures)),
            disks,
            links,
            {index: name for index in named if (name := _name(index))},
            self._uplinks,
            total_memory(self._meminfo.read() or b""),
            self._weighings(disks or {}),
            {name: number_of_disk(number.decode()) for number, name in self._device_names.items()},
            energy=self._rapl.read(),
        )

    def _weighings(self, disks: Collection[str]) -> dict[str, Weighing]:
        numbers = {name: number.decode() for number, name in self._device_names.items()}
        cost = self._cost()
        found = {disk: weighing_of(self._paths, disk, numbers[disk], cost) for disk in disks}
        return {disk: weighing for disk, weighing in found.items() if weighing is not None}

    def read_disks(self) -> Mapping[str, DeviceCounters] | None:
        """The counters of whole disks that were ever used, by name."""
        text = self._diskstats.read_in_parts(_MOST_BYTES)
        if text is None:
            return None
        lines = list(disk_lines(text))
        names = frozenset(name for _, name, _ in lines)
        if names != self._whole[0]:
            with contextlib.suppress(OSError):
                self._whole = names, frozenset(names_in(self._paths.block_devices))
        self._device_names = {number: name for number, name, _ in lines}
        # A slash in a name is an exclamation mark in sysfs.
        return {
            name: counters
            for _, name, counters in lines
            if counters.requests and name.replace("/", "!") in self._whole[1]
        }

    def _follow_uplinks(self, indexes: frozenset[int]) -> None:
        if indexes == self._indexes and self._uplinks_unread % UPLINKS_EVERY:
            self._uplinks_unread += 1
            return
        self._indexes, self._uplinks_unread = indexes, 1
        found: list[Uplink] = []
        with contextlib.suppress(OSError):
            for name in names_in(self._paths.interfaces):
                folder = self._paths.interfaces / name
                device = folder / "device"
                if device.exists() and not (device / "physfn").exists():  # a VF's packets are its VM's
                    index = number_of(folder / "ifindex")
                    if index is not None:
                        found.append(Uplink(index, self._speed(name)))
        self._uplinks = tuple(found)

    def _speed(self, name: str) -> float | None:
        """Bytes a second; None: it says none, as virtio and an interface that is down (EINVAL, or -1)."""
        with contextlib.suppress(OSError, ValueError):
            speed = number_of(self._paths.interfaces / name / "speed")
            return speed * _BYTES_PER_MBIT if speed is not None and speed > 0 else None
        return None

    def close(self) -> None:
        """Close all files; may be called twice."""
        for file in (*self._pressures, self._diskstats, self._meminfo):
            file.close()
        self._rapl.close()


def _name(index: int) -> str | None:
    """As it is now; None: it is gone."""
    with contextlib.suppress(OSError):
        return socket.if_indextoname(index)
    return None
