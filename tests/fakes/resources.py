"""Counters of memory, disks and network in memory, which only grow while a VM runs, as the kernel's. For unit tests."""

from __future__ import annotations

import errno
from collections.abc import Collection
from dataclasses import dataclass, field

from manager.errors import HostError, VmVanished
from manager.model.host import VmInstance
from manager.model.resource_use import HostCounters, VmCounters
from tests.fakes.host import FakeHost


@dataclass
class FakeResources:
    """``ResourcePort`` over a host in memory. ``counters`` are by UUID; one without has all None.

    ``held`` are the instances whose files are open, ``reads`` who was read, in order. ``failing``: the host cannot be
    read.
    """

    of: FakeHost
    now_s: float = 0.0
    counters: dict[str, VmCounters] = field(default_factory=dict)
    own: HostCounters = field(default_factory=lambda: HostCounters(0.0))
    held: set[VmInstance] = field(default_factory=set)
    reads: list[str] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    failing: bool = False

    def vm(self, instance: VmInstance) -> VmCounters:
        self.reads.append(instance.libvirt_name)
        if not self.of.is_alive(instance):
            self.held.discard(instance)
            raise VmVanished("read: No such process", errno.ESRCH)
        if instance.libvirt_name in self.unreadable:
            raise HostError("open: Too many open files", errno.EMFILE)
        self.held.add(instance)
        return self.counters.get(instance.uuid, VmCounters(0.0))._replace(monotonic_s=self.now_s)

    def host(self, taps: Collection[int], pcpus: Collection[int] = ()) -> HostCounters:
        if self.failing:
            raise HostError("open: Too many open files", errno.EMFILE)
        links = self.own.links or {}
        return self.own._replace(
            monotonic_s=self.now_s,
            names={index: f"vnet{index}" for index in taps if index in links},
            pcpus={cpu: power for cpu, power in self.own.pcpus.items() if cpu in pcpus},
        )

    def forget(self, keep: Collection[VmInstance]) -> None:
        self.held &= set(keep)
