"""Changes where the kernel has a say: the idle class loses weights, threads inherit pins, pCPUs go offline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.diff import HostValues, diff
from manager.model.cpus import CpuSet
from manager.model.decision import Action, Change, Goal, Owned, Plan
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.registration import Mode

IDLE, WEIGHT = KnobKey("u", Knob.IDLE), KnobKey("u", Knob.WEIGHT)
EMULATOR, VCPU = KnobKey("u", Knob.EMULATOR_PIN), KnobKey("u", Knob.VCPU_PIN)
NEW_VCPU = KnobKey("u", Knob.VCPU_PIN, 1)
ALL, ZERO, ONE = frozenset({0, 1, 2, 3}), frozenset({0}), frozenset({1})
DEFAULT = 1024


def wants(*values: tuple[KnobKey, KnobValue], mode: Mode = Mode.ENFORCE) -> Plan:
    return Plan(tuple(Goal(key, value, "why", mode) for key, value in values))


class Kernel:
    """A VM's group and threads, and a ledger. A write to ``broken`` fails; ``dies_after`` so many writes we die."""

    def __init__(self, weight: int = 5000, idle: int = 0, pins: dict[KnobKey, KnobValue] | None = None) -> None:
        self.weight, self.idle = weight, idle
        self.pins = dict(pins or {})
        self.ledger: dict[KnobKey, Owned] = {}
        self.online = ALL
        self.broken: set[KnobKey] = set()
        self.dies_after = 10**9
        self.adoptions = 0
        self.scopes: set[str] = set()

    @property
    def values(self) -> dict[KnobKey, KnobValue]:
        weight: dict[KnobKey, KnobValue] = {} if self.idle else {WEIGHT: self.weight}
        return {IDLE: self.idle, **weight, **self.pins}

    def write(self, key: KnobKey, value: KnobValue) -> bool:
        if key in self.broken or (key == WEIGHT and self.idle):
            return False
        if key == IDLE:
            if self.idle != value:
                self.weight = DEFAULT  # kernel/sched/fair.c, sched_group_set_idle
            self.idle = int(value == 1)
        elif key == WEIGHT:
            assert isinstance(value, int)
            self.weight = value
        else:
            self.pins[key] = value
        return True

    def reach(self, plan: Plan) -> tuple[Change, ...]:
        """One tick, journal first. Dies in the middle where it is to."""
        found = HostValues(self.values, self.online, DEFAULT, {"u": self.adoptions}, self.scopes)
        changes = diff(plan, found, dict(self.ledger))
        self._note(changes)
        written: set[KnobKey] = set()
        for change in changes:
            if change.action not in {Action.WRITE, Action.RESTORE}:
                continue
            if self.dies_after == 0:
                return changes
            self.dies_after -= 1
            if self.write(change.key, change.after):
                written.add(change.key)
                self.ledger[change.key] = replace(self.ledger[change.key], settled=True)
        for change in changes:
            done = change.action is Action.FORGET or (change.action is Action.RESTORE and change.key in written)
            if done and (change.awaits is None or change.awaits in written):
                self.ledger.pop(change.key, None)
        return changes

    def _note(self, changes: tuple[Change, ...]) -> None:
        """All that is about to be written is in the ledger, and what waits for nothing is forgotten."""
        for change in changes:
            known = self.ledger.get(change.key)
            if known and known.external and change.action is Action.KEEP:
                known = None
            if change.action in {Action.WRITE, Action.RESTORE, Action.KEEP}:
                assert change.original is not None
                original = known.original if known else change.original
                self.ledger[change.key] = Owned(original, change.before, change.after)
            elif change.action is Action.LEAVE and known:
                self.ledger[change.key] = replace(known, external=True, adoptions=self.adoptions)
        for change in changes:
            if change.action is Action.FORGET and change.awaits is None:
                self.ledger.pop(change.key, None)

    def plug(self, key: KnobKey) -> None:
        """One vCPU more: QEMU's main thread starts it, so it begins where that runs."""
        self.pins[key] = self.pins[EMULATOR]

    def restart(self) -> None:
        """The agent dies, and starts with its journal: only memory knows what was settled."""
        self.dies_after = 10**9
        self.ledger = {key: replace(owned, settled=False) for key, owned in self.ledger.items()}


def actions(changes: tuple[Change, ...]) -> list[tuple[Action, Knob, KnobValue]]:
    return [(change.action, change.key.knob, change.after) for change in changes]


def test_into_the_idle_class_and_out_again() -> None:
    vm = Kernel(weight=5000)
    assert actions(vm.reach(wants((IDLE, 1), (WEIGHT, 2)))) == [
        (Action.WRITE, Knob.WEIGHT, 2),
        (Action.WRITE, Knob.IDLE, 1),
    ], "the weight while there is one"
    assert vm.reach(wants((IDLE, 1), (WEIGHT, 2))) == ()
    assert actions(vm.reach(wants((IDLE, 0), (WEIGHT, 30)))) == [
        (Action.WRITE, Knob.IDLE, 0),
        (Action.WRITE, Knob.WEIGHT, 30),
    ], "and when there is one again"
    vm.reach(Plan())
    assert (vm.idle, vm.weight, vm.ledger) == (0, 5000, {})


def test_a_weight_that_nobody_wrote_survives_the_idle_class() -> None:
    vm = Kernel(weight=5000)
    assert actions(vm.reach(wants((IDLE, 1)))) == [(Action.KEEP, Knob.WEIGHT, 5000), (Action.WRITE, Knob.IDLE, 1)]
    vm.reach(Plan())
    assert (vm.idle, vm.weight, vm.ledger) == (0, 5000, {})


def test_an_operators_idle_class_stays() -> None:
    vm = Kernel(idle=1)
    assert vm.reach(wants((WEIGHT, 2))) == (), "it has no weight to be written"
    assert vm.reach(wants((IDLE, 1), (WEIGHT, 2))) == ()
    vm.reach(wants((IDLE, 0), (WEIGHT, 30)))
    assert (vm.idle, vm.weight) == (0, 30)
    vm.reach(Plan())
    assert (vm.idle, vm.ledger) == (1, {})


def test_where_the_idle_class_is_refused_the_weight_holds() -> None:
    vm = Kernel(weight=5000)
    vm.broken = {IDLE}
    for _ in range(3):
        vm.reach(wants((IDLE, 1), (WEIGHT, 2)))
        assert (vm.idle, vm.weight) == (0, 2)
    vm.reach(Plan())
    assert (vm.idle, vm.weight, vm.ledger) == (0, 5000, {})


def test_a_weight_that_somebody_else_set_is_not_lost_in_the_idle_class() -> None:
    vm = Kernel(weight=5000)
    vm.reach(wants((WEIGHT, 2)))
    vm.weight = 777
    for _ in range(3):
        vm.reach(wants((IDLE, 1), (WEIGHT, 2)))
        assert (vm.idle, vm.weight) == (0, 777)


def test_who_takes_a_vm_out_of_the_idle_class_is_respected() -> None:
    """The idle class is given up; the weight, which that lost, is ours to set and to put back."""
    vm = Kernel(weight=5000)
    vm.reach(wants((IDLE, 1), (WEIGHT, 2)))
    vm.write(IDLE, 0)
    found = vm.reach(wants((IDLE, 1), (WEIGHT, 2)))
    assert [change.action for change in found if change.key == IDLE] == [Action.LEAVE]
    vm.reach(wants((IDLE, 1), (WEIGHT, 2)))
    assert (vm.idle, vm.weight) == (0, 2)
    vm.reach(Plan())
    assert (vm.idle, vm.weight, vm.ledger) == (0, 5000, {})


class Scope(Kernel):
    """Its group is a scope of systemd."""

    def __init__(self, weight: int) -> None:
        super().__init__(weight)
        self.scopes, self.property = {"u"}, weight

    def reload(self) -> None:
        """As systemd does on daemon-reload: it leaves the idle class first."""
        self.write(IDLE, 0)
        self.write(WEIGHT, self.property)


@pytest.mark.parametrize("weight", [DEFAULT, 5000])
@pytest.mark.parametrize("goals", [((WEIGHT, 2),), ((IDLE, 1),), ((IDLE, 1), (WEIGHT, 2))])
def test_what_systemd_gives_a_scope_again_is_set_again(weight: int, goals: tuple) -> None:
    vm = Scope(weight)
    vm.reach(wants(*goals))
    as_wanted = (vm.idle, vm.weight)
    for _ in range(3):
        vm.reload()
        assert Action.LEAVE not in {change.action for change in vm.reach(wants(*goals))}
        assert (vm.idle, vm.weight) == as_wanted
        assert vm.reach(wants(*goals)) == ()
    vm.reload()
    vm.reach(Plan())
    assert (vm.idle, vm.weight, vm.ledger) == (0, weight, {})


def test_a_weight_that_systemd_was_given_is_an_external_change() -> None:
    vm = Scope(DEFAULT)
    vm.reach(wants((IDLE, 1), (WEIGHT, 2)))
    vm.property = 777  # systemctl set-property
    vm.reload()
    for _ in range(3):
        vm.reach(wants((IDLE, 1), (WEIGHT, 2)))
        assert (vm.idle, vm.weight, vm.ledger[WEIGHT].external) == (0, 777, True)
    vm.adoptions = 1
    for _ in range(3):
        vm.reach(wants((IDLE, 1), (WEIGHT, 2)))
    assert vm.idle == 1
    vm.reach(Plan())
    assert (vm.idle, vm.weight, vm.ledger) == (0, 777, {})


GOALS = st.tuples(st.sampled_from([None, 0, 1]), st.sampled_from([None, 2, 30, DEFAULT, 5000]))


def plan_of(idle: int | None, weight: int | None) -> Plan:
    values = ((IDLE, idle), (WEIGHT, weight))
    return wants(*((key, value) for key, value in values if value is not None))


@given(st.sampled_from([5000, DEFAULT]), st.lists(GOALS, max_size=5), st.sets(st.sampled_from([IDLE, WEIGHT])))
def test_whatever_fails_everything_comes_back(weight: int, history: list, broken: set) -> None:
    vm = Kernel(weight=weight)
    for number, goals in enumerate(history):
        vm.broken = broken if number % 2 else set()
        vm.reach(plan_of(*goals))
    vm.broken = set()
    for _ in range(2):
        vm.reach(Plan())
    assert (vm.idle, vm.weight, vm.ledger) == (0, weight, {})


@given(st.lists(GOALS, min_size=1, max_size=5), st.integers(0, 3), st.booleans())
def test_dying_between_any_two_writes_loses_nothing(history: list, dies_after: int, released: bool) -> None:
    """The last tick dies after so many writes; the next start, with the journal, goes on or puts back."""
    vm = Kernel(weight=5000)
    for goals in history[:-1]:
        vm.reach(plan_of(*goals))
    vm.dies_after = dies_after
    vm.reach(plan_of(*history[-1]))
    vm.restart()
    if not released:
        idle, weight = history[-1]
        found = [*vm.reach(plan_of(idle, weight)), *vm.reach(plan_of(idle, weight))]
        assert Action.LEAVE not in {change.action for change in found}, "our own doing is nobody else's"
        assert vm.idle == (idle or 0)
        assert vm.idle or vm.weight == (weight or 5000)
    for _ in range(2):
        vm.reach(Plan())
    assert (vm.idle, vm.weight, vm.ledger) == (0, 5000, {})


def test_a_plugged_vcpu_gets_back_what_the_emulator_had() -> None:
    vm = Kernel(pins={EMULATOR: ALL, VCPU: ALL})
    vm.reach(wants((EMULATOR, ZERO), (VCPU, ZERO)))
    vm.plug(NEW_VCPU)
    vm.reach(wants((EMULATOR, frozenset({0, 1})), (VCPU, ZERO), (NEW_VCPU, ONE)))
    assert vm.pins[NEW_VCPU] == ONE
    vm.reach(Plan())
    assert set(map(frozenset, vm.pins.values())) == {ALL}
    assert vm.ledger == {}


def test_a_plugged_vcpu_is_let_go_also_if_nothing_was_planned_for_it() -> None:
    vm = Kernel(pins={EMULATOR: ALL, VCPU: ALL})
    vm.reach(wants((EMULATOR, ZERO), (VCPU, ZERO)))
    vm.plug(NEW_VCPU)
    vm.reach(Plan())
    assert vm.pins == {EMULATOR: ALL, VCPU: ALL, NEW_VCPU: ALL}


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("own", [ZERO, ONE, ALL])
def test_a_vcpu_that_is_plugged_while_the_emulator_cannot_go_back(own: CpuSet, dies: bool) -> None:
    """It has our pin, and the vCPU of the operator's that is just where we put the emulator has not."""
    vm = Kernel(pins={EMULATOR: ALL, VCPU: own})
    vm.reach(wants((EMULATOR, ZERO), (VCPU, ZERO)))
    vm.broken = {EMULATOR}
    vm.reach(Plan())
    assert vm.pins == {EMULATOR: ZERO, VCPU: own}
    for index in (1, 2):
        vm.plug(KnobKey("u", Knob.VCPU_PIN, index))
        if dies:
            vm.restart()
        vm.reach(Plan())
    vm.broken = set()
    vm.reach(Plan())
    assert (vm.pins.pop(VCPU), set(vm.pins.values()), vm.ledger) == (own, {ALL}, {})


SETS = st.sampled_from([ZERO, ONE, ZERO | ONE, ALL])


@given(
    own=st.tuples(SETS, SETS, SETS),
    history=st.lists(
        st.tuples(
            st.one_of(st.none(), SETS),  # where all is pinned, None: nowhere
            st.sets(st.sampled_from([EMULATOR, VCPU, NEW_VCPU])),  # of which the write fails
            st.one_of(st.none(), st.integers(0, 3)),  # the agent dies after so many writes
            st.booleans(),  # a vCPU comes
        ),
        max_size=6,
    ),
)
def test_whatever_fails_all_threads_get_their_pins_back(own: tuple, history: list) -> None:
    """Those that came later what the emulator had."""
    vm = Kernel(pins=dict(zip((EMULATOR, VCPU, NEW_VCPU), own, strict=True)))
    originals = dict(vm.pins)
    for pin, broken, dies_after, plugs in history:
        vm.broken, vm.dies_after = broken, 10**9 if dies_after is None else dies_after
        changes = vm.reach(Plan() if pin is None else wants(*((key, pin) for key in vm.pins)))
        assert Action.LEAVE not in {change.action for change in changes}, "our own doing is nobody else's"
        if dies_after is not None:
            vm.restart()
        if plugs:
            key = KnobKey("u", Knob.VCPU_PIN, len(vm.pins) - 1)
            vm.plug(key)
            originals[key] = originals[EMULATOR]
    vm.broken = set()
    for _ in range(2):
        vm.reach(Plan())
    assert (vm.pins, vm.ledger) == (originals, {})


def test_a_plugged_vcpu_that_is_wanted_just_where_it_began_is_no_pin_of_the_operators() -> None:
    """Also if the emulator moves on from there at once."""
    vm = Kernel(pins={EMULATOR: ALL, VCPU: ALL})
    vm.reach(wants((EMULATOR, ZERO), (VCPU, ZERO)))
    vm.plug(NEW_VCPU)
    vm.reach(wants((EMULATOR, ONE), (VCPU, ONE), (NEW_VCPU, ZERO)))
    vm.reach(Plan())
    assert (vm.pins, vm.ledger) == ({EMULATOR: ALL, VCPU: ALL, NEW_VCPU: ALL}, {})


def test_a_manual_pin_is_no_inheritance() -> None:
    """An operator's own pin that is just where we put the emulator beside it."""
    vm = Kernel(pins={EMULATOR: ALL, VCPU: ZERO})
    for _ in range(3):
        vm.reach(wants((EMULATOR, ZERO), (VCPU, ZERO)))
    vm.reach(Plan())
    assert vm.pins == {EMULATOR: ALL, VCPU: ZERO}
    assert vm.ledger == {}


def test_a_pin_to_a_pcpu_that_went_offline_is_still_ours() -> None:
    """The kernel lets such a thread run anywhere, and so it is found."""
    vm = Kernel(pins={EMULATOR: ALL, VCPU: ALL})
    vm.reach(wants((VCPU, ZERO)))
    vm.online = ALL - ZERO
    vm.pins = {EMULATOR: vm.online, VCPU: vm.online}
    assert actions(vm.reach(wants((VCPU, ONE)))) == [(Action.WRITE, Knob.VCPU_PIN, ONE)]
    vm.online = ALL
    vm.reach(Plan())
    assert vm.pins[VCPU] == ALL


def test_a_pin_of_which_a_part_is_offline_is_as_we_left_it() -> None:
    vm = Kernel(pins={EMULATOR: ALL})
    both = ZERO | ONE
    vm.reach(wants((EMULATOR, both)))
    vm.online, vm.pins = ALL - ONE, {EMULATOR: ZERO}
    assert vm.reach(wants((EMULATOR, both))) == ()


@pytest.mark.parametrize("mode", [Mode.ENFORCE, Mode.OBSERVE])
def test_what_was_given_up_is_taken_back_on_the_operators_word(mode: Mode) -> None:
    vm = Kernel(weight=5000)
    vm.reach(wants((WEIGHT, 2)))
    vm.weight = 777
    for _ in range(3):
        vm.reach(wants((WEIGHT, 2)))
    assert vm.weight == 777
    vm.adoptions += 1
    for _ in range(2):
        vm.reach(wants((WEIGHT, 2), mode=mode))
    assert vm.weight == (2 if mode is Mode.ENFORCE else 777)
    vm.reach(Plan())
    assert (vm.weight, vm.ledger) == (777, {}), "what was found there is the original now"


def test_an_adopted_pin_is_the_operators_also_where_the_emulator_runs() -> None:
    """Not taken for one that the thread inherited: it is its original now."""
    vm = Kernel(pins={EMULATOR: ALL, VCPU: ALL})
    vm.reach(wants((EMULATOR, ZERO), (VCPU, ZERO)))
    vm.pins[VCPU] = ONE
    for _ in range(2):
        vm.reach(wants((EMULATOR, ONE), (VCPU, ONE)))
    assert vm.ledger[VCPU].external
    vm.adoptions += 1
    for _ in range(3):
        vm.reach(wants((EMULATOR, ONE), (VCPU, ONE)))
    vm.reach(Plan())
    assert (vm.pins, vm.ledger) == ({EMULATOR: ALL, VCPU: ONE}, {})


def test_one_word_is_for_one_time() -> None:
    vm = Kernel(weight=5000)
    for found in (777, 888):
        vm.reach(wants((WEIGHT, 2)))
        vm.weight = found
        for _ in range(2):
            vm.reach(wants((WEIGHT, 2)))
        assert vm.weight == found
        vm.adoptions += 1
        for _ in range(2):
            vm.reach(wants((WEIGHT, 2)))
        assert vm.weight == 2


@pytest.mark.parametrize("plan", [Plan(()), wants((VCPU, ONE))], ids=["undone", "wanted again"])
def test_a_part_of_an_original_that_was_on_its_way_back_is_let_go(plan: Plan) -> None:
    """The kernel narrowed it to a cpuset, and the disk was full when that was to be noted; or somebody else did."""
    back = Owned(ALL, previous=ONE, intended=ALL)
    found = HostValues({VCPU: ZERO}, ALL)
    assert [change.action for change in diff(plan, found, {VCPU: back})] == [Action.FORGET]
    settled = diff(plan, found, {VCPU: replace(back, settled=True)})
    assert settled[0].action is Action.LEAVE, "it was given back, and is somebody else's since"
