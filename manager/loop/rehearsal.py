"""What would be done about the cache now: the keeper itself, on groups that change in memory alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from manager.errors import HostError
from manager.host.port import CachePort
from manager.loop.cache_keeper import CacheKeeper
from manager.loop.cache_reading import CacheResult, CacheSeen
from manager.loop.journal import Journal
from manager.model.cache import DEFAULT, CacheUse, Group, Resctrl, Schemata
from manager.model.cpus import CpuSet
from manager.model.decision import Action, Change
from manager.model.host import VmInstance
from manager.model.knobs import KnobKey, KnobValue
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


def written_by(changes: Iterable[Change]) -> dict[str, dict[KnobKey, KnobValue]]:
    """What settings would then hold, by domain UUID."""
    written: dict[str, dict[KnobKey, KnobValue]] = {}
    for change in changes:
        if change.action in {Action.WRITE, Action.RESTORE}:
            written.setdefault(change.key.uuid, {})[change.key] = change.after
    return written


class Rehearsal:
    """A ``CachePort`` that reads from another and changes nothing but what it tells itself.

    Monitoring groups are neither made nor read: nothing is decided by them at once.
    """

    def __init__(self, port: CachePort) -> None:
        self._port = port
        self._groups: dict[str, Group] | None = None
        self._tasks: dict[str, frozenset[int]] = {}

    def offered(self, online: CpuSet) -> Resctrl | None:
        return self._port.offered(online)

    def domains(self) -> Mapping[int, CpuSet]:
        return self._port.domains()

    def mount(self) -> bool:
        raise HostError("resctrl would be mounted first, and only then it tells what it offers")

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

    def threads(self, instance: VmInstance, *, afresh: bool = False) -> frozenset[int]:
        return self._port.threads(instance, afresh=afresh)

    def create(self, group: str) -> None:
        if not _monitors(group):
            self._set(Group(group, {}))

    def remove(self, group: str) -> None:
        if not _monitors(group):
            self._groups = {name: one for name, one in self.groups().items() if name != group}
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

    def close(self) -> None:
        self._port.close()

    def _set(self, group: Group) -> None:
        self._groups = {**self.groups(), group.name: group}
        self._tasks.setdefault(group.name, frozenset())


def _monitors(path: str) -> bool:
    return "/" in path
