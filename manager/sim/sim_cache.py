"""``CachePort`` of a simulated host: groups as the kernel keeps them, errors included, over ``memory_bus``."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping

from manager.errors import HostError, VmVanished
from manager.model.cache import DEFAULT, CacheUse, Group, Mask, Resctrl, Schemata, is_ours
from manager.model.cpus import CpuSet
from manager.model.host import VmInstance
from manager.sim.memory_bus import MONITORS, Counter, SimMemory, control
from manager.sim.scenario import FaultKind
from manager.sim.world import World, in_step

_TIDS = 1000


class SimCache:
    """See ``CachePort``. It is always mounted, and nobody else has groups. Belongs to the control loop's thread."""

    def __init__(self, world: World, memory: SimMemory, speed: float = 1.0) -> None:
        """``speed``: seconds of the world in one second of its reader, by which counters of bytes are scaled."""
        self.world = world
        self._memory = memory
        self._speed = speed

    def offered(self, online: CpuSet) -> Resctrl | None:  # noqa: ARG002 - all pCPUs are online
        """As of the scenario."""
        return self._memory.offered

    def domains(self) -> Mapping[int, CpuSet]:
        """The pCPUs of each domain."""
        of = self._memory.domain_of
        return {number: frozenset(cpu for cpu, domain in enumerate(of) if domain == number) for number in set(of)}

    def mount(self) -> bool:
        """It is mounted."""
        return False

    def unmount(self) -> None:
        """It stays mounted. Raises HostError."""
        raise _error("umount", errno.EBUSY)

    @in_step
    def groups(self) -> Mapping[str, Group]:
        """All control groups."""
        return {name: Group(name, dict(values)) for name, values in self._memory.values.items()}

    @in_step
    def tasks(self, group: str) -> frozenset[int]:
        """Of a control group also those in its monitoring groups."""
        memory = self._memory
        alive = [vm.instance for vm in self.world.vms.values() if vm.alive]
        here = [vm for vm in alive if group in {memory.home(vm), control(memory.home(vm))}]
        return frozenset().union(*map(self.threads, here))

    @in_step
    def monitored(self, groups: Collection[str]) -> Mapping[str, frozenset[str]]:
        """The monitoring groups in each."""
        there = groups if self._memory.spec.rmids else ()
        return {
            name: frozenset(path.rpartition("/")[2] for path in self._memory.inside(name))
            for name in there
            if name in self._memory.values
        }

    @in_step
    def uses(self, groups: Collection[str]) -> Mapping[str, tuple[CacheUse, ...]]:
        """Counters of a control group are with those of the monitoring groups inside it."""
        memory = self._memory
        uses = {}
        for path in groups if memory.spec.rmids else ():
            if path in memory.counters:
                counters = [memory.counters[counted] for counted in (path, *memory.inside(path))]
                uses[path] = tuple(self._use(counters, domain) for domain in range(memory.spec.domains))
        return uses

    @in_step
    def threads(self, instance: VmInstance, *, afresh: bool = False) -> frozenset[int]:  # noqa: ARG002
        """The emulator's thread and one for each vCPU. Raises VmVanished."""
        vm = self.world.vms.get(instance.libvirt_name)
        if vm is None or not vm.alive or vm.instance != instance:
            raise VmVanished(f"process {instance.pid} is gone", errno.ESRCH)
        return frozenset(range(_TIDS * instance.pid, _TIDS * instance.pid + len(vm.vcpus) + 1))

    @in_step
    def create(self, group: str) -> None:
        """A control group has all ways and all bandwidth at first."""
        memory, above = self._memory, control(group)
        self._ours(group)
        if group in memory.counters:
            raise _error(f"mkdir {group}", errno.EEXIST)
        if MONITORS in group.split("/"):
            if above not in memory.values or not memory.spec.rmids:
                raise _error(f"mkdir {group}", errno.ENOENT)
        elif len(memory.values) >= memory.spec.closids:
            raise _error(f"mkdir {group}", errno.ENOSPC)
        if memory.spec.rmids and len(memory.counters) >= memory.spec.rmids:
            raise _error(f"mkdir {group}", errno.ENOSPC)
        memory.counters[group] = Counter()
        if above == group:
            memory.values[group] = memory.all_of_it()

    @in_step
    def remove(self, group: str) -> None:
        """With its monitoring groups and counters; one that is gone is no error."""
        self._ours(group)
        memory, above = self._memory, control(group)
        for path in (*(memory.inside(group) if above == group else ()), group):
            memory.counters.pop(path, None)
        memory.values.pop(group, None)
        goes_to = DEFAULT if above == group else above
        gone = [vm for vm, home in memory.homes.items() if home not in memory.counters]
        memory.homes |= dict.fromkeys(gone, goes_to)

    @in_step
    def write(self, group: str, values: Schemata) -> Schemata:
        """All values or none. EINVAL: one is not legal."""
        if group != DEFAULT:
            self._ours(group)
        held = self._memory.values.get(group)
        if held is None:
            raise _error(f"write schemata of {group}", errno.ENODEV)
        caches = {cache.name: cache for cache in self._memory.offered.caches}
        limits = {bandwidth.name: bandwidth for bandwidth in self._memory.offered.bandwidths}
        legal = {}
        for slot, value in values.items():
            cache = caches.get(slot.resource)
            if slot not in held or (cache and (problem := cache.problem(Mask(value)))):
                what = problem if slot in held else "no such domain"
                raise HostError(f"write {slot.resource}:{slot.domain}={value}: {what}", errno.EINVAL)
            legal[slot] = value if cache else limits[slot.resource].legal(value)
        held |= legal
        return legal

    @in_step
    def move(self, group: str, instance: VmInstance) -> int:
        """Put a VM into a group of either kind. Raises VmVanished, HostError."""
        threads = self.threads(instance)
        if (FaultKind.WRITE_ERROR, instance.libvirt_name) in self.world.faults:
            raise _error(f"write tasks of {group}", errno.EIO)
        if group not in self._memory.counters:
            raise _error(f"write tasks of {group}", errno.ENODEV)
        self._memory.homes[instance] = group
        return len(threads)

    def close(self) -> None:
        """Nothing is held open."""

    def _use(self, counters: Collection[Counter], domain: int) -> CacheUse:
        moved = round(sum(counter.moved.get(domain, 0.0) for counter in counters) / self._speed)
        occupied = round(sum(counter.occupied.get(domain, 0.0) for counter in counters))
        return CacheUse(domain, occupied, moved, moved)

    @staticmethod
    def _ours(group: str) -> None:
        if not is_ours(group.rpartition("/")[2]):
            raise _error(f"resctrl group {group!r} is not ours", errno.EPERM)


def _error(what: str, number: int) -> HostError:
    return HostError(f"{what}: {os.strerror(number)}", number)
