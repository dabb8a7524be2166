"""The cache of a simulated host in step with the clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager

from manager.model.cache import CacheUse, Group, Resctrl, Schemata
from manager.model.cpus import CpuSet
from manager.model.host import VmInstance
from manager.sim.sim_cache import SimCache


class LiveCache:
    """The ``CachePort`` of a live simulation; see ``SimCache``."""

    def __init__(self, look: Callable[[], AbstractContextManager[object]], cache: SimCache) -> None:
        """``look`` brings the world up to now, and gives the lock under which it may be looked at."""
        self._look = look
        self._cache = cache

    def offered(self, online: CpuSet) -> Resctrl | None:
        """As of the scenario."""
        return self._cache.offered(online)

    def domains(self) -> Mapping[int, CpuSet]:
        """As of the scenario."""
        return self._cache.domains()

    def mount(self) -> bool:
        """It is mounted."""
        return self._cache.mount()

    def unmount(self) -> None:
        """It stays mounted. Raises HostError."""
        self._cache.unmount()

    def groups(self) -> Mapping[str, Group]:
        """All control groups."""
        with self._look():
            return self._cache.groups()

    def tasks(self, group: str) -> frozenset[int]:
        """Ids of a group's threads."""
        with self._look():
            return self._cache.tasks(group)

    def monitored(self, groups: Collection[str]) -> Mapping[str, frozenset[str]]:
        """The monitoring groups in each."""
        with self._look():
            return self._cache.monitored(groups)

    def uses(self, groups: Collection[str]) -> Mapping[str, tuple[CacheUse, ...]]:
        """The counters of groups."""
        with self._look():
            return self._cache.uses(groups)

    def threads(self, instance: VmInstance, *, afresh: bool = False) -> frozenset[int]:
        """Ids of a VM's threads. Raises VmVanished."""
        with self._look():
            return self._cache.threads(instance, afresh=afresh)

    def create(self, group: str) -> None:
        """Make a group of either kind. Raises HostError."""
        with self._look():
            self._cache.create(group)

    def remove(self, group: str) -> None:
        """Remove a group of either kind. Raises HostError."""
        with self._look():
            self._cache.remove(group)

    def write(self, group: str, values: Schemata) -> Schemata:
        """Give a group values. Raises HostError."""
        with self._look():
            return self._cache.write(group, values)

    def move(self, group: str, instance: VmInstance) -> int:
        """Put a VM into a group. Raises VmVanished, HostError."""
        with self._look():
            return self._cache.move(group, instance)

    def close(self) -> None:
        """Nothing is held open."""
