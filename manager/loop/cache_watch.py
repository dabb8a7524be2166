"""Measures who has how much of the cache and of the memory's bandwidth, by monitoring groups of resctrl.

These are known by their names, as groups of ours are, and need no note: nothing of a VM changes by them. A VM that goes
to another control group leaves its monitoring group, so that is looked at after the steps of a tick.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Collection, Iterator, Mapping

from manager.control.monitoring import (
    LASTING,
    Counted,
    DomainMemory,
    Measured,
    Saturation,
    Traffic,
    Watched,
    WatchPlan,
    next_saturation,
    plan_watch,
    totals,
    traffic,
)
from manager.errors import HostError, JournalError, VmVanished
from manager.host.port import CachePort
from manager.loop.cache_reading import CacheReading, CacheSeen
from manager.loop.journal import Journal
from manager.model.cache import PREFIX, Group
from manager.model.host import VmInstance
from manager.model.numbers import digits
from manager.model.problem import Problem, ProblemKind
from manager.model.registration import Mode

RETRY_S = 60.0
"""So long no monitoring group is made after the kernel refused one."""
MOST_NAMED = 3
"""So many VMs are named of those that take the most."""
_GROWN = 1.02
"""A maximum is written down again when it grew by this factor."""
_GONE = frozenset({errno.ENOENT, errno.ENODEV})


class CacheWatch:
    """Keeps the monitoring groups of one host and reads the counters. Belongs to the control loop."""

    def __init__(self, journal: Journal, now_s: Callable[[], float]) -> None:
        """``now_s``: a monotonic time in seconds."""
        self._journal = journal
        self._now_s = now_s
        self._counted: dict[str, Counted] = {}
        self._settled: dict[str, tuple[VmInstance, frozenset[int]]] = {}
        self._rates: dict[str, float] = {}
        self._memories = {domain: Saturation(most, known=True) for domain, most in journal.maxima.items()}
        self._warned: dict[int, str] = {}
        self._refused: tuple[float, str] = -math.inf, ""

    def tick(
        self,
        port: CachePort,
        reading: CacheReading,
        present: Mapping[str, Group],
        moved: Mapping[str, str],
    ) -> tuple[Measured, tuple[Problem, ...]]:
        """Make, remove and read groups: what was measured, and what could not be done.

        ``present``: the groups after the steps of this tick, ``moved``: where these put VMs, by domain UUID.
        """
        seen = reading.seen
        if reading.offered.monitoring is None:
            return Measured(notes=_unable(reading)), ()
        enforced = seen.wanted and seen.snapshot.host.mode is Mode.ENFORCE
        problems: tuple[Problem, ...] = ()
        try:
            inside = port.monitored(present)
            watched = list(self._watched(reading, moved)) if enforced else []
            plan = plan_watch(reading.offered, watched, inside)
            owned, problems = self._arrange(port, seen, plan, inside, moved)
            if not enforced:
                self._counted = {}
                port.uses(())
                note = "in mode observe nothing is measured: that takes groups" if seen.wanted else ""
                return Measured(notes=(note,) if note else (), owned=owned), problems
            rates = self._read(port, plan, present)
        except HostError as error:
            failed = Problem(ProblemKind.CACHE, f"cache and memory traffic: {error}")
            return Measured(able=enforced, owned=len(self._settled)), (*problems, failed)
        names = {vm.key: vm.name for vm in watched}
        vms = {names[key]: rates[path] for key, path in plan.of.items() if path in rates}
        self._rates = {vm.name: vm.rate for vm in watched}
        self._rates |= {vm: sum(part.total or 0.0 for part in parts) for vm, parts in vms.items()}
        memories = self._judge(totals([rates[name] for name in present if name in rates]), seen, vms)
        left = f"not measured, as RMIDs are few: {', '.join(plan.left_out)}"
        notes = (*_unable(reading), *([left] if plan.left_out else []), *self._notes())
        able = "mbm_total_bytes" in reading.offered.monitoring.features
        return Measured(vms, memories, notes, able, owned), (*problems, *self._note_maxima())

    def _watched(self, reading: CacheReading, moved: Mapping[str, str]) -> Iterator[Watched]:
        """The managed VMs of mode enforce that are in one group, of ours or the default one."""
        views = {view.name: view for view in reading.seen.snapshot.vms}
        for uuid, spec in reading.seen.specs.items():
            view = views[spec.name]
            if uuid not in reading.homes or reading.stays(uuid) or view.mode is not Mode.ENFORCE:
                continue
            homes = {moved[uuid]} if uuid in moved else reading.homes[uuid]
            if len(homes) == 1:
                rate = self._rates.get(spec.name, 0.0)
                yield Watched(uuid, spec.name, min(homes), view.critical, rate, view.vcpus)

    def _arrange(
        self,
        port: CachePort,
        seen: CacheSeen,
        plan: WatchPlan,
        inside: Mapping[str, Collection[str]],
        moved: Collection[str],
    ) -> tuple[int, tuple[Problem, ...]]:
        """Remove what is not needed, make what is, and put the VMs there: how many groups there are then.

        ``seen.only``: nothing but the group of that VM is removed.
        """
        there = {f"{group}/mon_groups/{name}".lstrip("/") for group, names in inside.items() for name in names}
        there &= {*plan.unneeded, *plan.wanted.values()}
        problems: list[Problem] = []
        for path in plan.unneeded:
            if seen.only is not None and path.rpartition("/")[2] != f"{PREFIX}{seen.only}":
                continue
            self._settled.pop(path, None)
            try:
                port.remove(path)
                there.discard(path)
            except HostError as error:
                problems.append(Problem(ProblemKind.CACHE, str(error)))
        for key, path in plan.wanted.items():
            try:
                if path not in there:
                    if self._now_s() < self._refused[0]:
                        continue
                    self._settled.pop(path, None)
                    port.create(path)
                    there.add(path)
                self._settle(port, path, seen.running[key], fresh=key in moved)
            except VmVanished:
                continue
            except HostError as error:
                if error.errno in _GONE:
                    continue
                if path in there:
                    problems.append(Problem(ProblemKind.CACHE, str(error)))
                else:
                    self._refused = self._now_s() + RETRY_S, str(error)
        self._settled = {path: of for path, of in self._settled.items() if path in there}
        return len(there), tuple(problems)

    def _settle(self, port: CachePort, path: str, instance: VmInstance, *, fresh: bool) -> None:
        """Put a VM's threads into its group, once: those that start later inherit it. Raises VmVanished, HostError."""
        if fresh or self._settled.get(path) != (instance, port.threads(instance)):
            self._settled.pop(path, None)
            port.move(path, instance)
            self._settled[path] = instance, port.threads(instance)

    def _read(
        self, port: CachePort, plan: WatchPlan, present: Mapping[str, Group]
    ) -> Mapping[str, tuple[Traffic, ...]]:
        """What each group used since the last reading, by path. Raises HostError."""
        inside = port.monitored(present)
        before, self._counted = self._counted, {}
        paths = [*present, *(path for path in plan.of.values() if path not in present)]
        for path, uses in port.uses(paths).items():
            self._counted[path] = Counted(self._now_s(), uses, frozenset(inside.get(path, ())))
        return {path: traffic(before.get(path), now) for path, now in self._counted.items()}

    def _judge(
        self, rates: Mapping[int, float | None], seen: CacheSeen, vms: Mapping[str, tuple[Traffic, ...]]
    ) -> tuple[DomainMemory, ...]:
        """The traffic of each domain beside the most that was measured there."""
        memories = []
        for domain, rate in sorted(rates.items()):
            before = self._memories.get(domain, Saturation())
            now = self._memories[domain] = next_saturation(before, rate, seen.snapshot.host.bandwidth_warning)
            memories.append(DomainMemory(domain, rate, now.maximum, now.saturated))
            if not now.saturated:
                self._warned.pop(domain, None)
            elif domain not in self._warned and rate is not None and now.maximum is not None:
                self._warned[domain] = _saturated(domain, rate, now.maximum, vms)
        return tuple(memories)

    def _note_maxima(self) -> tuple[Problem, ...]:
        """Write the most that was measured of each domain into the journal, where that grew."""
        maxima = {domain: memory.maximum for domain, memory in self._memories.items() if memory.maximum is not None}
        written = self._journal.maxima
        if any(most > written.get(domain, 0.0) * _GROWN for domain, most in maxima.items()):
            try:
                self._journal.note_maxima(maxima)
            except JournalError as error:
                return (Problem(ProblemKind.JOURNAL, str(error)),)
        return ()

    def _notes(self) -> list[str]:
        """What lasts: each is reported once for as long as it is the same."""
        refused = [self._refused[1]] if self._now_s() < self._refused[0] else []
        return [*(f"some are not measured: {why}" for why in refused), *self._warned.values()]


def _unable(reading: CacheReading) -> tuple[str, ...]:
    """What cannot be done without counters of memory traffic."""
    offered = reading.offered
    counts = offered.monitoring is not None and "mbm_total_bytes" in offered.monitoring.features
    if counts or not reading.seen.wanted or not offered.bandwidths:
        return ()
    return ("this host does not measure memory traffic: no VM can be found to be the cause, and none is held back",)


def _saturated(domain: int, rate: float, maximum: float, vms: Mapping[str, tuple[Traffic, ...]]) -> str:
    rates = {vm: part.total for vm, parts in vms.items() for part in parts if part.domain == domain and part.total}
    most = sorted(rates, key=lambda vm: (-rates[vm], vm))[:MOST_NAMED]
    who = ", ".join(f"{vm} {digits(rates[vm] / 1e9)}" for vm in most)
    return (
        f"the memory of domain {domain} is all but used up: {digits(rate / 1e9)} GB/s for {LASTING} intervals, at most"
        f" {digits(maximum / 1e9)} were measured" + (f"; most is taken by {who}" if who else "")
    )
