"""What would be done about the cache now: the keeper itself, on groups that change in memory alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from manager.errors import HostError
from manager.host.port import CachePort
from manager.loop.cache_keeper import CacheKeeper
from manager.loop.cache_reading import CacheResult, CacheSeen
from manager.loop.journal import Journal
from manager.model.cache import DEFAULT, CacheUse, Group, Schemata
from manager.model.decision import Change
from manager.model.host import VmInstance
from manager.model.problem import Problem


@dataclass(frozen=True, slots=True)
class Preview:
    """What a tick would change; ``names`` are the registered names by domain UUID, None for the host itself.

    ``cache``: as if its steps had been taken.
    """

    changes: tuple[Change, ...]
    names: Mapping[str, str | None]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    cache: CacheResult


def rehearse(port: CachePort | None, journal: Journal, seen: CacheSeen) -> CacheResult:
    """What the keeper of an agent that begins anew would do. The journal, a copy, has its note again afterwards."""
    before = journal.cache
    try:
        return CacheKeeper(port and Rehearsal(port), journal, lambda: 0.0).tick(seen)
    finally:
        journal.note_cache(before)


class Rehearsal:
    """A ``CachePort`` that reads from another and changes nothing but its own copy.

    Monitoring groups are neither made nor read: nothing is decided by them at once.
    """

    def __init__(self, port: CachePort) -> None:
        self._port = port
        self.offered, self.domains, self.threads, self.close = port.offered, port.domains, port.threads, port.close
        self._groups: dict[str, Group] | None = None
        self._tasks: dict[str, frozenset[int]] = {}

    def mount(self) -> bool:
        raise HostError("resctrl would be mounted first, and only then shows what it offers")

    def unmount(self) -> None:
        """It would be."""

    def groups(self) -> Mapping[str, Group]:
        if self._groups is None:
            self._groups = dict(self._port.groups())
            self._tasks = {name: self._port.tasks(name) for name in self._groups}
        return {name: self._groups[name] for name in sorted(self._groups)}

    def tasks(self, group: str) -> frozenset[int]:
        self.groups()
        return self._tasks.get(group, frozenset())

    def monitored(self, groups: Collection[str]) -> Mapping[str, frozenset[str]]:
        del groups
        return {}

    def uses(self, groups: Collection[str]) -> Mapping[str, tuple[CacheUse, ...]]:
        del groups
        return {}

    def create(self, group: str) -> None:
        if not _monitors(group):
            self._set(Group(group, {}))

    def remove(self, group: str) -> None:
        if not _monitors(group):
            self._groups = {name: kept for name, kept in self.groups().items() if name != group}
            self._tasks[DEFAULT] |= self._tasks.pop(group, frozenset())

    def write(self, group: str, values: Schemata) -> Schemata:
        before = self.groups()[group]
        self._set(replace(before, values={**before.values, **values}))
        return values

    def move(self, group: str, instance: VmInstance) -> int:
        if _monitors(group):
            return 0
        threads = self.threads(instance)
        moved = threads - self.tasks(group)
        self._tasks = {
            name: (tids | threads) if name == group else tids - threads for name, tids in self._tasks.items()
        }
        return len(moved)

    def _set(self, group: Group) -> None:
        self._groups = {**self.groups(), group.name: group}
        self._tasks.setdefault(group.name, frozenset())


def _monitors(path: str) -> bool:
    return "/" in path
