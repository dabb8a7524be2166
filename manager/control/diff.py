"""The changes that lead from the host as it is to the plan, and back to the originals where nothing is planned."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from manager.model.cpus import CpuSet
from manager.model.decision import Action, Change, Goal, Owned, Plan
from manager.model.knob_spec import Family, KnobValue, Order, Scope
from manager.model.knob_text import knob_text
from manager.model.knobs import (
    BATCH_GROUPS,
    EGRESS,
    HOST_UUID,
    IDLE_CLASSES,
    MEMORIES,
    PINS,
    UNEVEN,
    UNLIMITED,
    Knob,
    KnobKey,
    of_family,
)
from manager.model.registration import Mode
from manager.model.scheduling import is_real_time

_OBSERVE_REASON = "not enforced any more: back to the original"
_GROUPS = KnobKey(HOST_UUID, Knob.RT_RUNTIME)
"""The root's, which is read together with those of all groups above VMs."""
_KEEPS = "kept for later: it changes with another setting"
_LEFT_OVER = "left over from us: it goes back when it is not wanted any more"
_LET_GO = frozenset({Action.RESTORE, Action.FORGET})
_OF_GROUPS = of_family(Family.CPU_GROUP, Family.BATCH_GROUP, Family.MEMORY, Family.DISK)


@dataclass(frozen=True, slots=True)
class HostValues:
    """The host as just read.

    ``values`` are the knobs that could be read. ``default_weight`` is what the kernel gives a group that leaves the
    idle class, whatever it had before (kernel/sched/fair.c, sched_group_set_idle); None without weights.
    ``adoptions`` counts, by domain UUID, how often the operator had settings taken back. ``scopes`` are the domains
    whose groups are scopes of systemd, and HOST_UUID where the batch group is a slice. ``replugged``: pCPUs went
    offline or came back a moment ago. ``no_batch_group``: there is none (any more). ``own_read``: all knobs of the host
    itself could be read. ``lost_irqs``: interrupts that are gone.
    """

    values: Mapping[KnobKey, KnobValue]
    online: CpuSet
    default_weight: int | None = None
    adoptions: Mapping[str, int] = field(default_factory=dict)
    scopes: Collection[str] = ()
    replugged: bool = False
    no_batch_group: bool = False
    own_read: bool = False
    lost_irqs: Collection[int] = ()


def diff(plan: Plan, host: HostValues, ledger: Mapping[KnobKey, Owned]) -> tuple[Change, ...]:
    """Compare the plan with the host.

    A knob in the ``ledger`` (those changed before) that is not planned, or only for a released VM, goes back to its
    original, so an empty plan undoes everything. A knob that holds neither what we wrote nor, before the write is
    known to have happened, what was there before, is an external change: it is left alone, until the operator
    adopts it; then it is forgotten, and so found anew by the next call. Knobs that could not be read are left alone.
    Changes that widen a CPU set come first (design, section 5, rule 4), then the order is that of the knobs, so a VM
    leaves the idle class before it gets a weight. Threads become real-time last, see ``_turn``.
    """
    goals = {goal.key: goal for goal in plan.goals if goal.mode is not Mode.RELEASED}
    pins: dict[str, list[KnobKey]] = {}
    for key in host.values:
        if key.knob in PINS:
            pins.setdefault(key.uuid, []).append(key)
    concerned: dict[str, set[KnobKey]] = {}
    for key in goals.keys() | ledger.keys():
        concerned.setdefault(key.uuid, set()).add(key)
        if key.knob is Knob.EMULATOR_PIN and key in ledger:  # threads that came later may have its pin
            concerned[key.uuid].update(pins.get(key.uuid, ()))
    differences = _Diff(goals, host, ledger, pins, f"{plan.undo_reason}: back to the original")
    changes = [
        change
        for uuid in sorted(concerned)
        if not all(map(differences.is_as_planned, concerned[uuid]))
        for change in differences.of_domain(uuid, sorted(concerned[uuid], key=_place))
    ]
    return tuple(sorted(changes, key=_turn))


def _place(key: KnobKey) -> tuple[str, int]:
    return key.knob, key.index


@dataclass(frozen=True, slots=True)
class _Diff:
    goals: Mapping[KnobKey, Goal]
    host: HostValues
    ledger: Mapping[KnobKey, Owned]
    pins: Mapping[str, list[KnobKey]]
    undo_reason: str

    def is_as_planned(self, key: KnobKey) -> bool:
        """Whether a knob surely needs no change: it holds what is planned, as we left it. Mostly true of all."""
        goal, owned, value = self.goals.get(key), self.ledger.get(key), self.host.values.get(key)
        if goal is None or goal.value != value:
            return False
        if owned is None:
            if key.knob.spec.made_here:  # left over from us
                return value == key.knob.spec.value.usual
            # A pin may be inherited from the emulator's, and then be ours.
            return key.knob not in PINS or KnobKey(key.uuid, Knob.EMULATOR_PIN) not in self.ledger
        return goal.mode is Mode.ENFORCE and not owned.external and owned.original != owned.intended == value

    def of_domain(self, uuid: str, keys: list[KnobKey]) -> list[Change]:
        weight_key = KnobKey(uuid, Knob.BATCH_WEIGHT if uuid == HOST_UUID else Knob.WEIGHT)
        idle_key = _idle_key(weight_key)
        changes: list[Change] = []
        if idle_key in keys:
            changes += self._of_idle(idle_key, weight_key)
        enters, leaves = (any(_sets_idle(change, value) for change in changes) for value in (1, 0))
        default = self.host.default_weight
        for key in keys:
            if key == weight_key and leaves and default is not None:
                changes += self._from(key, default, self.ledger.get(key))  # the kernel will have given it that
            elif key not in {idle_key, weight_key} or (key == weight_key and not enters):
                changes += self._of_knob(key)
        if enters:
            returns = any(change.action is Action.RESTORE for change in changes if change.key == idle_key)
            changes += self._before_idle(weight_key, returns)
        changes += self._pins_to_keep(uuid, changes)
        changes = self._until_the_emulator_is_back(uuid, changes)
        # The weight is written while the group has one: before it enters the idle class, after it left.
        return sorted(changes, key=lambda change: (weight_key, 1) if _sets_idle(change, 1) else (change.key, 0))

    def _of_idle(self, key: KnobKey, weight_key: KnobKey) -> list[Change]:
        weight, value = self.ledger.get(weight_key), self.host.values.get(weight_key)
        changes = self._of_knob(key)
        if weight and value is not None and (weight.external or not self._is_ours(weight_key, value, weight)):
            # The idle class would lose the weight that another tool gave.
            return [change for change in changes if not _sets_idle(change, 1)]
        return changes

    def _before_idle(self, key: KnobKey, returns: bool) -> Iterator[Change]:
        """The weight, which is lost in the idle class: its original must be in the ledger.

        A group that ``returns`` to the idle class had none.
        """
        value = self.host.values.get(key)
        if returns:
            if value is not None and key in self.ledger:
                yield Change(Action.FORGET, key, value, value, self.undo_reason)
            return
        changes = [
            replace(change, action=Action.WRITE) if change.action is Action.RESTORE else change
            for change in self._of_knob(key)
            if change.action is not Action.FORGET
        ]
        if value is not None and not changes and key not in self.ledger:
            changes = [Change(Action.KEEP, key, value, value, _KEEPS, value)]
        yield from changes

    def _of_knob(self, key: KnobKey) -> list[Change]:
        value = self.host.values.get(key)
        if value is None:
            return list(self._without_value(key))
        owned = self.ledger.get(key) or self._inherited(key, value)
        goal = self.goals.get(key)
        if owned is None:
            return list(self._from(key, value, None))
        if owned.external:
            return self._of_external(key, value, owned)
        if not self._is_ours(key, value, owned):
            if _part_given_back(value, owned):
                return [Change(Action.FORGET, key, value, value, self.undo_reason)]
            reason = f"external change: we left {knob_text(owned.intended)}, found {knob_text(value)}"
            leave = Change(Action.LEAVE, key, owned.intended, value, reason)
            return [leave] if goal else [leave, Change(Action.FORGET, key, value, value, self.undo_reason)]
        return list(self._from(key, value, owned))

    def _without_value(self, key: KnobKey) -> Iterator[Change]:
        """Forget what ended: settings of a thread that was unplugged, the weight of a group back in its own idle class,
        a warp whose scheduler is gone, the limit of a group that was removed, an interrupt that the host has no more.

        In all cases the VM was read, or the host's root group. All other knobs without a value could not be read.
        """
        owned, idle_key = self.ledger.get(key), _idle_key(key)
        idle = self.ledger.get(idle_key)
        unplugged = key.knob.spec.ends and KnobKey(key.uuid, Knob.EMULATOR_PIN) in self.host.values
        unplugged |= key[:2] == _GROUPS[:2] and _GROUPS in self.host.values
        unplugged |= key.uuid == HOST_UUID and key.knob in MEMORIES | EGRESS and self.host.own_read
        unplugged |= key.knob in BATCH_GROUPS and self.host.no_batch_group
        unplugged |= key.knob is Knob.IRQ_AFFINITY and key.index in self.host.lost_irqs
        weightless = key.knob in IDLE_CLASSES and idle is not None and idle.original == 1
        if owned and (unplugged or (weightless and self.host.values.get(idle_key) == 1)):
            yield Change(Action.FORGET, key, owned.intended, owned.intended, self.undo_reason)

    def _of_external(self, key: KnobKey, value: KnobValue, owned: Owned) -> list[Change]:
        """An external change: our memory of it ends when it is not wanted, or wanted back."""
        adopted = self.host.adoptions.get(key.uuid, 0) > owned.adoptions
        if key in self.goals and not adopted:
            return []
        if adopted and self._kept(key):  # forgotten, it could be taken for one that inherited the emulator's pin
            return [Change(Action.KEEP, key, value, value, _KEEPS, value)]
        return [Change(Action.FORGET, key, value, value, self.undo_reason)]

    def _from(self, key: KnobKey, value: KnobValue, owned: Owned | None) -> Iterator[Change]:
        """From ``value``, which is as we left it or nobody's, to what is wanted."""
        goal = self.goals.get(key)
        original = _found(key, value) if owned is None else owned.original
        if goal is not None and goal.mode is Mode.ENFORCE:
            # The second case corrects an intention that a crash kept from being written, or that names pCPUs which
            # went offline since: once they are back, the kernel may have taken them from the thread for good.
            if not self._alike(value, goal.value) or (owned is not None and owned.intended != goal.value):
                yield Change(Action.WRITE, key, value, goal.value, goal.reason, original)
            elif owned is None and value != original:
                yield Change(Action.KEEP, key, value, value, _LEFT_OVER, original)
            elif owned is not None and value == original and not self._kept(key):
                yield Change(Action.FORGET, key, value, value, goal.reason)
            return
        if owned is not None:
            reason = self.undo_reason if goal is None else _OBSERVE_REASON
            kept, there = self._kept(key), self._alike(value, original)
            if there and (half_done := self._half_done(key, owned)) is not None:
                yield Change(Action.RESTORE, key, half_done, original, reason, original)
            elif not (kept and there):
                action = Action.FORGET if there else Action.WRITE if kept else Action.RESTORE
                yield Change(action, key, value, original, reason, original)
            value = original
        if goal is not None and goal.mode is Mode.OBSERVE and not self._alike(value, goal.value):
            yield Change(Action.OBSERVE, key, value, goal.value, goal.reason)

    def _half_done(self, key: KnobKey, owned: Owned) -> KnobValue | None:
        """What some threads of an emulator may still hold although its main thread, the last to be pinned, does not."""
        if key.knob is not Knob.EMULATOR_PIN or owned.settled:
            return None
        written = (owned.intended, owned.previous)
        return next((value for value in written if not self._alike(value, owned.original)), None)

    def _is_ours(self, key: KnobKey, value: KnobValue, owned: Owned) -> bool:
        """Whether ``value`` is as we left it, or as kernel or systemd made it of that."""
        if any(self._alike(value, ours) for ours in owned.may_be):
            return True
        if value in key.knob.spec.resets or (value == owned.original and self._is_reapplied(key)):
            return True
        if value == UNEVEN and key.knob is Knob.DISK_CEILING:  # a crash came between
            return not owned.settled
        if isinstance(owned.intended, frozenset):
            if key.knob in PINS and self.host.replugged and self._is_reset(value, owned.intended):
                return True
            # All of them are offline: the kernel lets the thread run anywhere. Or a part of a pin of which nobody noted
            # what it became: the kernel narrowed it to a cpuset (cpuset(7)).
            pinning = not owned.settled and owned.intended != owned.original
            narrowed = pinning and isinstance(value, frozenset) and value < owned.intended
            return narrowed or not owned.intended & self.host.online
        idle = self.ledger.get(_idle_key(key))
        left_idle = idle is not None and idle.intended == 1 and self.host.values.get(_idle_key(key)) == 0
        return key.knob in IDLE_CLASSES and left_idle and value == self.host.default_weight

    def _is_reset(self, value: KnobValue, intended: CpuSet) -> bool:
        """Whether a pin became all pCPUs of its cpuset: before Linux 6.2 all threads of one get these when a pCPU goes
        offline or comes back (kernel/cgroup/cpuset.c, update_tasks_cpumask).
        """
        return isinstance(value, frozenset) and intended & self.host.online <= value <= self.host.online

    def _is_reapplied(self, key: KnobKey) -> bool:
        """Whether systemd may write a knob's original again: on ``systemctl daemon-reload``, which each installation of
        a package with a unit runs, and when any property of the scope is set (systemd, src/core/cgroup.c,
        cgroup_context_apply).
        """
        if key.knob in MEMORIES and key.uuid == HOST_UUID:  # a slice, where the VMs below it are in scopes
            return bool(self.host.scopes)
        return key.knob in _OF_GROUPS and key.uuid in self.host.scopes

    def _inherited(self, key: KnobKey, value: KnobValue) -> Owned | None:
        """The pin of a thread that came after its VM was pinned: it has it from the emulator thread, as we left that.

        All threads that were there before are in the ledger, as long as the emulator is.
        """
        emulator_key = KnobKey(key.uuid, Knob.EMULATOR_PIN)
        emulator, now = self.ledger.get(emulator_key), self.host.values.get(emulator_key)
        if key.knob not in PINS or emulator is None or emulator.external:
            return None
        if value not in emulator.may_be:
            left = value == now and not emulator.settled and self._is_ours(emulator_key, now, emulator)
            if not left:  # by a write that may have failed
                return None
        return Owned(emulator.original, previous=value, intended=value)

    def _kept(self, key: KnobKey) -> bool:
        """Whether a knob that holds its original must stay in the ledger: a pin of a VM whose emulator we pin."""
        emulator = KnobKey(key.uuid, Knob.EMULATOR_PIN)
        goal = self.goals.get(emulator)
        return key.knob in PINS and key != emulator and goal is not None and goal.mode is Mode.ENFORCE

    def _pins_to_keep(self, uuid: str, changes: list[Change]) -> Iterator[Change]:
        """The pins of threads that must not be taken for such as inherited the emulator's."""
        emulator = KnobKey(uuid, Knob.EMULATOR_PIN)
        if not any(change.key == emulator and change.action is Action.WRITE for change in changes):
            return
        changing = {change.key for change in changes if change.action is Action.WRITE}
        for key in self.pins.get(uuid, ()):
            if key not in self.ledger and key not in changing:
                value = self.host.values[key]
                inherited = self._inherited(key, value)
                original = value if inherited is None else inherited.original
                yield Change(Action.KEEP, key, value, value, _KEEPS, original)

    def _until_the_emulator_is_back(self, uuid: str, changes: list[Change]) -> list[Change]:
        """Other pins stay in the ledger until their VM's emulator is restored.

        When that fails, threads that come later still inherit its pin, and must not be taken for those that were there.
        """
        emulator = KnobKey(uuid, Knob.EMULATOR_PIN)
        if not any(change.key == emulator and change.action is Action.RESTORE for change in changes):
            return changes
        return [
            replace(change, awaits=emulator) if change.action in _LET_GO and self._is_other_pin(change.key) else change
            for change in changes
        ]

    def _is_other_pin(self, key: KnobKey) -> bool:
        """Of a thread that is there and not the emulator's."""
        return key.knob in PINS and key.knob is not Knob.EMULATOR_PIN and key in self.host.values

    def _alike(self, value: KnobValue, other: KnobValue) -> bool:
        """Whether two values are the same on this host: the kernel leaves out pCPUs that are offline."""
        if isinstance(value, int) or isinstance(other, int):
            return value == other
        return value == other or (self.host.online.isdisjoint(value ^ other) and not self.host.online.isdisjoint(value))


def _found(key: KnobKey, value: KnobValue) -> KnobValue:
    """The original of a knob that is not in the ledger and holds ``value``."""
    spec = key.knob.spec
    return spec.value.usual if spec.made_here and spec.value.usual is not None else value


def _part_given_back(value: KnobValue, owned: Owned) -> bool:
    """Whether a pin holds a part of its original, which was on its way back when nobody noted what it became.

    Either the kernel narrowed it to a cpuset (cpuset(7)), or another tool did since: nothing more is to be done.
    """
    back = not owned.settled and owned.intended == owned.original
    return back and isinstance(value, frozenset) and isinstance(owned.original, frozenset) and value < owned.original


def _sets_idle(change: Change, value: int) -> bool:
    written = change.action in {Action.WRITE, Action.RESTORE} and change.before != change.after
    return change.key.knob in IDLE_CLASSES.values() and written and change.after == value


def _idle_key(weight_key: KnobKey) -> KnobKey:
    """The idle class beside a weight."""
    return KnobKey(weight_key.uuid, IDLE_CLASSES.get(weight_key.knob, Knob.IDLE))


def _turn(change: Change) -> tuple[int, int, int]:
    """The place of a change among all, where that matters: by the order of its knob.

    The kernel takes the limit of real-time CPU time from no group with a real-time thread (EBUSY), gives no such thread
    to a group without one (EPERM), and lets no group have less than those inside it together (EINVAL;
    kernel/sched/rt.c, tg_rt_schedulable). So threads leave first, limits shrink from the innermost group and grow from
    the outermost (the id of a group is mostly larger than that of the one around it), and threads enter last.
    """
    key, before, after = change.key, change.before, change.after
    order = key.knob.spec.order
    if order is Order.WIDEN_FIRST and isinstance(before, frozenset) and isinstance(after, frozenset) and before < after:
        return 0, 0, 0
    if order is Order.GROUP_FIRST:
        return 1, 0, 0
    if order is Order.REAL_TIME_LAST and isinstance(after, int):
        return (5 if is_real_time(after) else 1), 0, 0
    if order is Order.NESTED and isinstance(before, int) and isinstance(after, int):
        depth = 0 if key.uuid == HOST_UUID else 1 if key.knob.spec.scope is Scope.GROUP else 2
        if after != UNLIMITED and (before == UNLIMITED or after < before):
            return 2, -depth, -key.index
        return 4, depth, key.index
    return 3, 0, 0
