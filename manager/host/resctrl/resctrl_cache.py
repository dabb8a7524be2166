"""``CachePort`` on resctrl: what is offered, groups, and VMs in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from manager.errors import HostError
from manager.host.resctrl.groups import Groups
from manager.host.resctrl.info import discover
from manager.host.resctrl.monitor import Monitors
from manager.host.resctrl.mount import ensure_mounted, unmount_ours
from manager.host.resctrl.thread_moves import move
from manager.host.resctrl.tree import ResctrlTree
from manager.model.cache import CacheUse, Group, Resctrl, Schemata
from manager.model.cpus import CpuSet
from manager.model.host import VmInstance

Threads = Callable[[VmInstance, bool], frozenset[int]]
"""Ids of a VM's threads as last listed, or afresh. Raises VmVanished, HostError."""


class ResctrlCache:
    """See ``CachePort``. What is read at every tick is held open, which keeps resctrl from being unmounted."""

    def __init__(self, tree: ResctrlTree, threads: Threads, domains: Callable[[int], Mapping[int, CpuSet]]) -> None:
        """``domains`` tells the pCPUs of each cache of a level by its id. Nothing is read yet."""
        self._tree = tree
        self._groups = Groups(tree)
        self._monitors = Monitors(tree)
        self._threads = threads
        self._domains_of = domains
        self._known: tuple[CpuSet, Resctrl, Mapping[int, CpuSet]] | None = None

    def offered(self, online: CpuSet) -> Resctrl | None:
        """See ``CachePort``."""
        if self._known is None or self._known[0] != online:
            with self._understood():
                found = discover(self._tree)
            if found is None:
                self.close()
                return None
            level = found.divided[0].level if found.divided else 0
            self._known = online, found, self._domains_of(level)
        return self._known[1]

    def domains(self) -> Mapping[int, CpuSet]:
        """See ``CachePort``."""
        return self._known[2] if self._known else {}

    def mount(self) -> bool:
        """See ``CachePort``."""
        return ensure_mounted(self._tree, allowed=True)

    def unmount(self) -> None:
        """See ``CachePort``."""
        self._monitors.close()
        unmount_ours(self._tree, self._groups)
        self.close()

    def groups(self) -> Mapping[str, Group]:
        """See ``CachePort``."""
        with self._understood():
            return self._groups.read()

    def tasks(self, group: str) -> frozenset[int]:
        """See ``CachePort``."""
        with self._understood():
            return self._groups.tasks(group)

    def monitored(self, groups: Collection[str]) -> Mapping[str, frozenset[str]]:
        """See ``CachePort``."""
        with self._understood():
            return self._groups.monitored(groups)

    def uses(self, groups: Collection[str]) -> Mapping[str, tuple[CacheUse, ...]]:
        """See ``CachePort``."""
        with self._understood():
            return self._monitors.read(groups)

    def threads(self, instance: VmInstance, *, afresh: bool = False) -> frozenset[int]:
        """See ``CachePort``."""
        return self._threads(instance, afresh)

    def create(self, group: str) -> None:
        """See ``CachePort``."""
        self._groups.create(group)

    def remove(self, group: str) -> None:
        """See ``CachePort``."""
        self._groups.remove(group)

    def write(self, group: str, values: Schemata) -> Schemata:
        """See ``CachePort``."""
        with self._understood():
            return self._groups.write(group, values)

    def move(self, group: str, instance: VmInstance) -> int:
        """See ``CachePort``."""
        return move(self._groups, group, lambda: self._threads(instance, True)).threads

    def close(self) -> None:
        """See ``CachePort``."""
        self._known = None
        self._groups.close()
        self._monitors.close()

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Whatever goes wrong is read anew next time: somebody may have unmounted it."""
        try:
            yield
        except HostError:
            self.close()
            raise
        except ValueError as error:  # never seen from a kernel, but one file must not stop the loop
            self.close()
            raise HostError(f"resctrl: {error}") from error
