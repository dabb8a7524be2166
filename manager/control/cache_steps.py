"""From the groups of resctrl that a host has to those it is to have, one command after the other.

At every instant each group that has VMs, and the default group, has legal ways, and no two groups gain common ways of
which one is to have its own alone. Every step may be the last: the next plan starts from what is there then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from manager.control.cache_plan import CachePlan, PlannedGroup
from manager.model.cache import DEFAULT, EMPTY, Group, Mask, Resctrl, Schemata, Slot, is_cache, is_ours, union


class CacheAction(StrEnum):
    """What a step does: put a VM into a group, remove a group, make one without VMs, or give one values."""

    MOVE = "move"
    REMOVE = "remove"
    MAKE = "make"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class CacheStep:
    """One change. ``vm`` is of a move, ``values`` of a write.

    ``shares``: there is no way but to let groups share what one is to have alone for an instant. That is needed only
    where another tool changed our groups, or has exclusive ways in the middle of the cache.
    """

    action: CacheAction
    group: str
    vm: str = ""
    values: Schemata = field(default_factory=dict)
    shares: bool = False


def plan_steps(
    offered: Resctrl, present: Mapping[str, Group], placed: Mapping[str, str], plan: CachePlan
) -> tuple[CacheStep, ...]:
    """The steps, none where all is as planned. ``placed``: the group of each VM that runs, of ours or the default one.

    First VMs go where a group is there already, so that groups not planned can be removed and CLOSIDs are free; then
    groups are made, all get their ways, and the other VMs go. A VM whose old group is removed before the new one is
    there is in the default group meanwhile.
    """
    goes_to = {vm: group.name for group in plan.groups.values() for vm in group.vms}
    moves = [
        CacheStep(CacheAction.MOVE, goes_to.get(vm, DEFAULT), vm)
        for vm in sorted(placed)
        if goes_to.get(vm, DEFAULT) != placed[vm]
    ]
    removed = [name for name in sorted(present) if is_ours(name) and name not in plan.groups]
    made = [name for name in sorted(plan.groups) if name not in present]
    early = [move for move in moves if move.group in present]
    # After the early moves and the removals: who is where when ways are written.
    now = {vm: DEFAULT if name in removed else name for vm, name in placed.items()}
    now |= {move.vm: move.group for move in early}
    populated = {DEFAULT, *now.values()}
    return (
        *early,
        *(CacheStep(CacheAction.REMOVE, name) for name in removed),
        *(CacheStep(CacheAction.MAKE, name) for name in made),
        *_writes(offered, {name: group for name, group in present.items() if name not in removed}, populated, plan),
        *(move for move in moves if move.group not in present),
    )


def _writes(
    offered: Resctrl, present: Mapping[str, Group], populated: set[str], plan: CachePlan
) -> Iterator[CacheStep]:
    """Give all groups their values: as soon as the ways are free; else what gives others room; else sharing."""
    values = {name: dict(group.values) for name, group in present.items() if not group.of_others}
    values |= {name: {} for name in plan.groups.keys() - present.keys()}
    state = _GroupValues(offered, plan.groups, values, populated)
    while state.waiting():
        for wanted in (state.free, state.parked, state.forced):
            steps = list(state.round(wanted))
            yield from steps
            if steps:
                break


class _GroupValues:
    """The values of the groups while they change."""

    def __init__(
        self,
        offered: Resctrl,
        plan: Mapping[str, PlannedGroup],
        values: dict[str, dict[Slot, int]],
        populated: set[str],
    ) -> None:
        self._caches = {cache.name: cache for cache in offered.caches}
        self._plan = plan
        self._values = values
        self._populated = populated

    def waiting(self) -> list[tuple[str, Slot]]:
        """What has not its value yet."""
        return [
            (name, slot)
            for name, group in sorted(self._plan.items())
            for slot, value in sorted(group.values.items())
            if self._values[name].get(slot) != value
        ]

    def write(self, name: str, values: Schemata, *, shares: bool = False) -> CacheStep | None:
        """A step that changes values of a group, None where it has them all."""
        changed = {slot: value for slot, value in values.items() if self._values[name].get(slot) != value}
        if not changed:
            return None
        self._values[name] |= changed
        return CacheStep(CacheAction.WRITE, name, values=changed, shares=shares)

    def round(self, wanted: Callable[[str, Slot], int | None]) -> Iterator[CacheStep]:
        """A step for each group for which ``wanted`` has values; after one that shares no other."""
        waiting = self.waiting()
        for name in dict.fromkeys(name for name, _ in waiting):
            values = {slot: wanted(name, slot) for group, slot in waiting if group == name}
            shares = wanted == self.forced
            if step := self.write(
                name, {slot: bits for slot, bits in values.items() if bits is not None}, shares=shares
            ):
                yield step
                if shares:
                    return

    def free(self, name: str, slot: Slot) -> int | None:
        """The planned value, if that takes no ways that it must not share; bandwidth takes none."""
        if not is_cache(slot.resource):
            return self._plan[name].values[slot]
        planned = Mask(self._plan[name].values[slot])
        return None if self._clashes(name, slot, planned) else planned.bits

    def _clashes(self, name: str, slot: Slot, ways: Mask) -> bool:
        """Whether another group has some that this one would gain, and one of both is to have its own alone."""
        gained = ways - self._has(name, slot)
        others = (other for other in self._values if other != name and other in self._plan)
        return any(
            not gained.disjoint(self._has_any(other, slot))
            for other in others
            if slot.domain in self._plan[name].alone | self._plan[other].alone
        )

    def parked(self, name: str, slot: Slot) -> int | None:
        """The ways of the default group, for one that is not alone any more: others wait for what it had alone.

        Nobody has alone what the default group has.
        """
        ways = self._has(DEFAULT, slot)
        stays = name == DEFAULT or slot.domain in self._plan[name].alone or ways == self._has(name, slot)
        return None if stays else ways.bits

    def forced(self, name: str, slot: Slot) -> int | None:
        """The planned value, whatever the others have."""
        return self._plan[name].values[slot]

    def _has(self, name: str, slot: Slot) -> Mask:
        """The ways that somebody uses through a group: of one without VMs none."""
        return Mask(self._values[name].get(slot, 0)) if name in self._populated else EMPTY

    def _has_any(self, name: str, slot: Slot) -> Mask:
        """The same of data and code together: they are in the same ways."""
        alike = (
            Slot(cache.name, slot.domain) for cache in self._caches.values() if cache.name[:2] == slot.resource[:2]
        )
        return union(self._has(name, resource) for resource in alike)
