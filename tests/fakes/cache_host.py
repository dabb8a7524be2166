"""The host in memory with a resctrl: a cache of twelve ways for each half of its pCPUs, and VMs that have threads."""

from __future__ import annotations

from dataclasses import dataclass, field

from manager.host.resctrl.resctrl_cache import ResctrlCache
from manager.host.resctrl.tree import ResctrlTree
from manager.model.cache import CacheResource, Mask, Slot
from manager.model.cpus import CpuSet
from manager.model.host import VmInstance
from tests.fakes.host import FakeHost
from tests.fakes.resctrl import FakeResctrl
from tests.fakes.vm import FakeVm, domain_uuid

CACHE = CacheResource("L3", Mask(0xFFF), 1, Mask(0xC00), 5, False, (0, 1), ((0, 1 << 20), (1, 1 << 20)))


@dataclass
class CacheHost(FakeHost):
    """``tree`` is what stands between us and ``resctrl``, such as one that kills; None: nothing does."""

    resctrl: FakeResctrl = field(default_factory=lambda: FakeResctrl((CACHE,)))
    tree: ResctrlTree | None = None
    port: ResctrlCache | None = None
    started: dict[VmInstance, list[int]] = field(default_factory=dict)

    @property
    def cache(self) -> ResctrlCache:
        if self.port is None:
            self.port = ResctrlCache(self.tree or self.resctrl, lambda vm, _afresh: self.threads(vm), self.domains)
        return self.port

    def domains(self, _level: int) -> dict[int, CpuSet]:
        half = self.cpus // 2
        return {0: frozenset(range(half)), 1: frozenset(range(half, self.cpus))}

    def threads(self, instance: VmInstance) -> frozenset[int]:
        self._require(instance)
        return frozenset(self.started[instance])

    def boot(self, name: str, vcpus: int = 1, pinned: CpuSet | None = None) -> str:
        uuid = super().boot(name, vcpus, pinned)
        instance = self.vms[uuid].instance
        self.started[instance] = [instance.pid * 100 + number for number in range(vcpus + 1)]
        self.resctrl.start(*self.started[instance])
        return uuid

    def stop(self, name: str) -> None:
        self.resctrl.end(*self.started.pop(self.vm(name).instance))
        super().stop(name)

    def plug_vcpu(self, name: str) -> None:
        super().plug_vcpu(name)
        tids = self.started[self.vm(name).instance]
        self.resctrl.start(max(tids) + 1, by=tids[0])
        tids.append(max(tids) + 1)

    def vm(self, name: str) -> FakeVm:
        return self.vms[domain_uuid(name)]

    def group_of(self, name: str) -> str:
        """The group that all threads of a VM are in."""
        [group] = {self.resctrl.group_of(tid) for tid in self.started[self.vm(name).instance]}
        return group

    def use(self, name: str, total: int = 0, local: int = 0, occupancy: int = 0, domain: int = 0) -> None:
        """A VM reads and writes so many bytes more, and has so many of the cache."""
        counters = {"mbm_total_bytes": total, "mbm_local_bytes": local, "llc_occupancy": occupancy}
        self.resctrl.use(self.started[self.vm(name).instance][0], domain, **counters)

    def measured_in(self, name: str) -> set[str]:
        """The groups, of either kind, that count the threads of a VM."""
        held = {tid: self.resctrl.tasks[tid] for tid in self.started[self.vm(name).instance]}
        return {f"{one.above.name}/{one.name}" if one.above else one.name for one in held.values()}

    def ways(self, group: str, domain: int = 0) -> str:
        """In hexadecimal."""
        return f"{self.resctrl.groups[group].values[Slot('L3', domain)]:x}"
