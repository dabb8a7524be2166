"""Registered scheduling: as a number, as goals within the kernel's limits, and each change in an order it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.diff import HostValues, diff
from manager.control.scheduling_plan import SchedulingPlan, plan_scheduling
from manager.model.decision import Action, Owned, Plan, Snapshot
from manager.model.knobs import HOST_UUID, SCHEDULINGS, UNLIMITED, Knob, KnobKey
from manager.model.registration import Mode, VmClass
from manager.model.scheduling import (
    BATCH,
    FIFO,
    IDLE,
    MOST_LIMIT_US,
    OTHER,
    RR,
    Scheduling,
    SchedulingPolicy,
    in_words,
    is_real_time,
    joined,
    parted,
)
from tests.fakes.host import MACHINE, FakeHost
from tests.fakes.vm import domain_uuid
from tests.unit.build import snapshot, view

NAMES = ("cache", "db", "web")
UUIDS = {name: domain_uuid(name) for name in NAMES}
ABOVE = {
    uuid: (MACHINE, KnobKey(uuid, Knob.RT_RUNTIME, 0), KnobKey(uuid, Knob.RT_RUNTIME, 1)) for uuid in UUIDS.values()
}


@pytest.mark.parametrize(
    ("policy", "level", "value", "words"),
    [
        (OTHER, 0, 0, "nice 0"),
        (OTHER, -20, -20, "nice -20"),
        (FIFO, 99, 1099, "fifo 99"),
        (RR, 1, 2001, "rr 1"),
        (BATCH, -20, 2980, "batch, nice -20"),
        (IDLE, 19, 5019, "idle, nice 19"),
        (9, 0, 9000, "policy 9, nice 0"),
    ],
)
def test_one_number_for_policy_and_level(policy: int, level: int, value: int, words: str) -> None:
    assert joined(policy, level) == value
    assert parted(value) == (policy, level)
    assert in_words(value) == words
    assert is_real_time(value) is (policy in {FIFO, RR})


def seen(wanted: Mapping[str, Scheduling | None], vcpus: int = 2, *, limits: bool = True) -> Snapshot:
    views = [view(name, vcpus=vcpus) for name in wanted]
    views = [replace(one, spec=replace(one.spec, scheduling=wanted[one.name])) for one in views]
    found = snapshot(*views)
    return replace(found, capabilities=replace(found.capabilities, limits_real_time=limits))


def plan(found: Snapshot, least: Mapping[KnobKey, int] | None = None) -> SchedulingPlan:
    return plan_scheduling(found, UUIDS, ABOVE, least or {}, {})


def values(made: SchedulingPlan) -> dict[KnobKey, object]:
    return {goal.key: goal.value for goal in made.goals}


def test_a_limit_is_that_of_the_vm_and_its_vcpus_share_it() -> None:
    made = values(plan(seen({"web": Scheduling(SchedulingPolicy.RR, 4, limit=0.5)}, vcpus=3)))
    uuid = UUIDS["web"]
    assert [made[key] for key in ABOVE[uuid]] == [500_000] * 3
    assert [made[KnobKey(uuid, Knob.VCPU_RT_RUNTIME, index)] for index in range(3)] == [166_666] * 3
    assert [made[KnobKey(uuid, Knob.SCHEDULING, index)] for index in range(3)] == [2004] * 3


@pytest.mark.parametrize(("least", "value"), [(0, 500_000), (200_000, 500_000), (700_000, 700_000), (UNLIMITED, None)])
def test_the_group_above_keeps_what_it_had(least: int, value: int | None) -> None:
    made = values(plan(seen({"web": Scheduling(SchedulingPolicy.FIFO, limit=0.5)}), {MACHINE: least}))
    assert made.get(MACHINE) == value


@pytest.mark.parametrize(
    ("found", "groups", "words"),
    [
        (seen({"web": Scheduling(SchedulingPolicy.FIFO, limit=0.5)}, limits=False), ABOVE, "this kernel has no limit"),
        (seen({"web": Scheduling(SchedulingPolicy.FIFO, limit=0.5)}), {}, "no CPU cgroup of its own"),
        (seen(dict.fromkeys(("db", "web"), Scheduling(SchedulingPolicy.FIFO, limit=0.5))), ABOVE, "more than the 0.45"),
    ],
)
def test_who_cannot_be_limited_is_not_made_real_time(
    found: Snapshot, groups: Mapping[str, tuple[KnobKey, ...]], words: str
) -> None:
    made = plan_scheduling(found, UUIDS, groups, {}, {})
    [problem] = made.problems
    assert problem.startswith("web cannot be real-time")
    assert words in problem
    assert not [goal for goal in made.goals if goal.key.uuid == UUIDS["web"]]


def test_neither_batch_vms_nor_released_ones_are_scheduled() -> None:
    found = seen({"web": Scheduling(SchedulingPolicy.FIFO, limit=0.5)})
    [web] = found.vms
    for other in (replace(web, mode=Mode.RELEASED), replace(web, spec=replace(web.spec, vm_class=VmClass.BATCH))):
        assert plan(replace(found, vms=(other,))) == SchedulingPlan()


def test_what_is_only_observed_takes_nothing_from_the_group_above() -> None:
    found = seen(dict.fromkeys(("db", "web"), Scheduling(SchedulingPolicy.FIFO, limit=0.4)))
    db, web = found.vms
    both = plan(replace(found, vms=(replace(db, mode=Mode.OBSERVE), web)))
    [above] = [goal for goal in both.goals if goal.key == MACHINE]
    assert (above.value, above.mode) == (400_000, Mode.ENFORCE)
    alone = plan(replace(found, vms=(replace(db, mode=Mode.OBSERVE),)))
    [above] = [goal for goal in alone.goals if goal.key == MACHINE]
    assert above.mode is Mode.OBSERVE


real_time = st.builds(
    Scheduling,
    st.sampled_from([SchedulingPolicy.FIFO, SchedulingPolicy.RR]),
    st.integers(1, 10),
    limit=st.floats(0.05, 0.9),
)
schedulings = st.none() | st.builds(Scheduling, st.just(SchedulingPolicy.OTHER), nice=st.integers(-20, 19)) | real_time
registered = st.fixed_dictionaries(dict.fromkeys(NAMES, schedulings))


@given(registered, st.integers(1, 5))
def test_limits_always_fit_into_each_other(wanted: dict[str, Scheduling | None], vcpus: int) -> None:
    made = plan(seen(wanted, vcpus))
    held = {key: value for key, value in values(made).items() if isinstance(value, int)}
    own = {uuid: held.get(KnobKey(uuid, Knob.RT_RUNTIME, 0), 0) for uuid in UUIDS.values()}
    assert sum(own.values()) == held.get(MACHINE, 0) <= MOST_LIMIT_US
    for uuid in UUIDS.values():
        parts = [value for key, value in held.items() if key.uuid == uuid and key.knob is Knob.VCPU_RT_RUNTIME]
        assert sum(parts) <= own[uuid]
        threads = [value for key, value in held.items() if key.uuid == uuid and key.knob is Knob.SCHEDULING]
        assert not any(map(is_real_time, threads)) or (len(parts) == vcpus and all(parts))


@given(st.lists(st.tuples(registered, st.integers(1, 3)), min_size=1, max_size=5))
def test_the_kernel_takes_every_change_in_its_turn_and_nothing_is_left(
    history: list[tuple[dict[str, Scheduling | None], int]],
) -> None:
    host, ledger = FakeHost(limits=True), dict[KnobKey, Owned]()
    for name in NAMES:
        host.boot(name, 3)
    before = host.settings()
    plans = [plan(seen(wanted, vcpus)).goals for wanted, vcpus in history]
    for goals in (*plans, ()):
        for change in diff(Plan(goals), HostValues(host.settings(), host.online), ledger):
            assert change.key.knob in SCHEDULINGS
            assert change.action in {Action.WRITE, Action.RESTORE, Action.FORGET}
            if change.action is not Action.FORGET:
                host.change(change.key, change.after)  # raises as the kernel refuses
            if change.action is Action.WRITE:
                original = ledger[change.key].original if change.key in ledger else change.before
                ledger[change.key] = Owned(original, change.before, change.after, settled=True)
            else:
                ledger.pop(change.key, None)
        held = host.settings()
        assert all(held[goal.key] == goal.value for goal in goals)
    assert host.settings() == before
    assert not ledger


def test_a_limit_of_a_group_that_was_removed_is_forgotten_once_the_root_was_read() -> None:
    key, root = KnobKey(HOST_UUID, Knob.RT_RUNTIME, 99), KnobKey(HOST_UUID, Knob.RT_RUNTIME)
    ledger = {key: Owned(0, 0, 300_000, settled=True)}
    for unknown in ({}, {MACHINE: 300_000}):  # one group of a VM is no sign that all were looked for
        assert diff(Plan(()), HostValues(unknown, frozenset({0})), ledger) == ()
    [change] = diff(Plan(()), HostValues({root: MOST_LIMIT_US}, frozenset({0})), ledger)
    assert (change.key, change.action) == (key, Action.FORGET)
