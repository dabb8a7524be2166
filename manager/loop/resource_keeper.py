"""Reads what VMs and the host use besides CPU time, between ticks and more seldom than these."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from manager.control.power_shares import energy_used
from manager.control.resource_rates import CountedVm, Round, recorded, resource_use
from manager.errors import HostError, VmVanished
from manager.host.port import ResourcePort
from manager.model.energy import EnergyPart, HostPower
from manager.model.host import VmInstance
from manager.model.resource_use import HostCounters, ResourceUse

EVERY_S = 5.0
"""A round takes so long, spread over ticks; with a longer interval it is one of each tick."""
CALM_EVERY_S = 10.0
"""The same while every SLA is met, and neither memory nor disks are divided: nobody waits for what it tells."""
NO_RESOURCES = ResourceUse()


class ResourceKeeper:
    """Rounds of readings, the VMs of one spread over ticks. ``latest`` are the rates of the last whole round."""

    def __init__(self, port: ResourcePort | None, interval_s: float) -> None:
        """``port`` None: the host has no such counters. ``interval_s`` is the time between two ticks."""
        self._port = port
        self._interval_s = interval_s
        self._before = Round()
        self._vms: dict[str, CountedVm] = {}
        self._waiting: Iterator[tuple[str, VmInstance]] = iter(())
        self._left = self._size = 0
        self.latest = NO_RESOURCES
        self.kept: ResourceUse | None = None
        """What of it is worth a record; None: there was no such round yet."""
        self.rounds = 0
        """How many were completed that gave rates."""
        self.power: HostPower | None = None
        """Of the host in the last whole round; None: not known."""
        self.energy_j: dict[EnergyPart, float] = {}
        """What it used since the first round, as far as it was counted."""

    def look(
        self,
        vms: Mapping[str, VmInstance],
        taps: Mapping[str, Collection[int]],
        critical: Collection[str] = (),
        whole: bool = False,
        pins: Mapping[str, Collection[int]] = MappingProxyType({}),
        calm: bool = False,
    ) -> None:
        """Read the next VMs, and the host with the last of a round. By name: those that are managed, and their taps.

        ``pins``: the pCPUs that critical ones are pinned to. ``whole``: all that are left of the round. ``calm``:
        nobody waits for what it tells. The first round that gives rates is made at once.
        """
        if self._port is None:
            return
        if self._left == 0:
            self._begin(vms)
        every_s = CALM_EVERY_S if calm and self.rounds else EVERY_S
        part = min(self._interval_s / every_s, 1.0)
        for name, instance in self._next(self._left if whole else math.ceil(self._size * part)):
            if vms.get(name) != instance:  # it ended since the round began
                continue
            with contextlib.suppress(VmVanished, HostError):  # one VM does not stop the others; it has no rates then
                self._vms[name] = CountedVm(instance, self._port.vm(instance))
        if self._left == 0:
            self._vms = {name: counted for name, counted in self._vms.items() if vms.get(name) == counted.instance}
            self._complete(self._port, taps, critical, pins)

    def _begin(self, vms: Mapping[str, VmInstance]) -> None:
        self._vms = {}
        self._waiting = iter(sorted(vms.items()))
        self._left = self._size = len(vms)

    def _next(self, count: int) -> Iterator[tuple[str, VmInstance]]:
        for _ in range(min(count, self._left)):
            self._left -= 1
            yield next(self._waiting)

    def _complete(
        self,
        port: ResourcePort,
        taps: Mapping[str, Collection[int]],
        critical: Collection[str],
        pins: Mapping[str, Collection[int]],
    ) -> None:
        indexes = frozenset(index for name in self._vms for index in taps.get(name, ()))
        try:
            host = port.host(indexes, frozenset(cpu for name in self._vms for cpu in pins.get(name, ())))
        except HostError:
            host = None
        now = Round(self._vms, {name: taps.get(name, ()) for name in self._vms}, host, pins)
        port.forget({counted.instance for counted in self._vms.values()})
        if self._before.host is not None:
            self.latest = resource_use(now, self._before)
            self.kept = recorded(self.latest, critical)
            self.rounds += 1
            self._count_energy(host, self._before.host)
        self._before = now

    def _count_energy(self, now: HostCounters | None, before: HostCounters) -> None:
        used = energy_used(now, before) if now is not None else None
        self.power = used.power if used is not None else None
        if used is not None:
            for part, joules in ((EnergyPart.PACKAGE, used.package_j), (EnergyPart.DRAM, used.dram_j)):
                if joules is not None:
                    self.energy_j[part] = self.energy_j.get(part, 0.0) + joules
