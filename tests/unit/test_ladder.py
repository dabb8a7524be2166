"""Which mechanism gives warps, and how often a scheduler that fails is tried again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.warp_plan import (
    CALM_S,
    FIRST_RETRY_S,
    LONGEST_RETRY_S,
    MOST_TRIES,
    NOTHING_YET,
    LadderMemory,
    SchedulerSeen,
    plan_warps,
)
from manager.model.decision import Owned, VmView
from manager.model.registration import HostSpec, Mode, VmClass, VmSpec
from manager.model.warp import EJECTED, LOADED, UNLOADED, Mechanism, Offer, WarpPlan, WarpUse
from tests.unit.build import snapshot

ALL = (Mechanism.SCHED_EXT, Mechanism.BVT, Mechanism.GROUP_IDENTITY, Mechanism.SLICE)
OURS = Owned(UNLOADED, UNLOADED, LOADED, settled=True)


@dataclass
class Host:
    """A host with a warped VM, planned once a second; what the plan asks for happens, or not."""

    mechanisms: tuple[Mechanism, ...] = ALL
    use: WarpUse = WarpUse.SCHED_EXT
    mode: Mode = Mode.ENFORCE
    adoptions: int = 0
    warp_us: int = 4_000
    vm_mode: Mode | None = None
    others: str = ""
    value: int = UNLOADED
    owned: Owned | None = None
    refuses: bool = False
    now_s: float = 1000.0
    ahead_s: float = 0.0
    memory: LadderMemory = field(default_factory=lambda: NOTHING_YET)

    def plan(self) -> WarpPlan:
        self.now_s += 1
        active = self.value == LOADED
        seen = snapshot(
            VmView(VmSpec("web", VmClass.CRITICAL, warp_us=self.warp_us), 1, 0.1, 0.0, self.vm_mode or self.mode, 1024)
        )
        capabilities = replace(
            seen.capabilities,
            warps=tuple(Offer(one, one in self.mechanisms, f"{one} was looked for") for one in ALL),
            scheduler="equipoise_bvt" if active else self.others,
            scheduler_is_ours=active,
        )
        host = HostSpec("h1", self.mode, adoptions=self.adoptions, warp=self.use)
        seen = replace(seen, now_s=self.now_s, ahead_s=self.ahead_s, host=host, capabilities=capabilities)
        plan, self.memory = plan_warps(seen, SchedulerSeen(self.value, self.owned), self.memory)
        if self.mode is Mode.ENFORCE and not (self.owned and self.owned.external):
            self._load() if plan.load else self._unload()
        return plan

    def _load(self) -> None:
        if not self.refuses:
            self.value, self.owned = LOADED, OURS

    def _unload(self) -> None:
        self.value, self.owned = UNLOADED, None

    def tries(self, plans: int) -> list[float]:
        """The times at which so many plans asked for the scheduler."""
        return [self.now_s for _ in range(plans) if self.plan().load]


@pytest.mark.parametrize(
    ("mechanisms", "use", "mechanism", "notes"),
    [
        (ALL, WarpUse.ON, Mechanism.BVT, []),
        (
            ALL[2:],
            WarpUse.ON,
            Mechanism.NONE,
            ["nobody gets one", '"warp": "group_identity"', '"warp": "slice"', "harm"],
        ),
        (ALL[3:], WarpUse.ON, Mechanism.NONE, ["nobody gets one", '"warp": "slice"', "harm"]),
        (ALL[:1], WarpUse.ON, Mechanism.NONE, ["nobody gets one", '"warp": "sched_ext"']),
        ((), WarpUse.ON, Mechanism.NONE, ["this kernel has no mechanism that was measured to help"]),
        (ALL, WarpUse.SLICE, Mechanism.SLICE, []),
        (ALL[:3], WarpUse.SLICE, Mechanism.NONE, ['"slice" was chosen, and this host has none: slice was looked for']),
        (ALL, WarpUse.GROUP_IDENTITY, Mechanism.GROUP_IDENTITY, []),
        (ALL[3:], WarpUse.GROUP_IDENTITY, Mechanism.NONE, ['"group_identity" was chosen']),
    ],
)
def test_what_was_chosen_or_helps_and_needs_no_loading(
    mechanisms: tuple[Mechanism, ...], use: WarpUse, mechanism: Mechanism, notes: list[str]
) -> None:
    plan = Host(mechanisms, use).plan()
    assert (plan.mechanism, plan.load, plan.problem) == (mechanism, False, "")
    assert [one.vm for one in plan.vms] == (["web"] if mechanism is not Mechanism.NONE else [])
    assert all(words in plan.note for words in notes)
    assert bool(plan.note) == bool(notes)
    assert mechanism is not Mechanism.NONE or plan.detail in plan.note


@given(mechanisms=st.sets(st.sampled_from(ALL)), use=st.sampled_from(WarpUse), refuses=st.booleans())
def test_nothing_that_was_not_measured_to_help_is_used_unless_it_was_chosen(
    mechanisms: set[Mechanism], use: WarpUse, refuses: bool
) -> None:
    host = Host(tuple(mechanisms), use, refuses=refuses)
    for _ in range(3):
        plan = host.plan()
        always = {Mechanism.NONE, Mechanism.SCHED_EXT, Mechanism.BVT}
        assert plan.mechanism in always or plan.mechanism.value == use.value
        assert plan.mechanism in mechanisms | {Mechanism.NONE}
        assert bool(plan.vms) == (plan.mechanism is not Mechanism.NONE)


def test_our_scheduler_is_loaded_where_that_was_asked_for_and_then_gives_the_warps() -> None:
    host = Host()
    first = host.plan()
    assert (first.mechanism, first.load, first.vms) == (Mechanism.NONE, True, ())
    second = host.plan()
    assert (second.mechanism, second.load) == (Mechanism.SCHED_EXT, True)
    assert second.vms[0].reason == "warp as registered: 4,000 us by sched_ext"


def test_nothing_is_loaded_for_nobody_and_it_goes_with_the_last_warp() -> None:
    host = Host(warp_us=0)
    assert host.plan() == WarpPlan(detail="no VM that runs here is to have a warp")
    host.warp_us = 4_000
    host.plan()
    assert host.plan().load
    host.warp_us = 0
    assert not host.plan().load


def test_nothing_is_loaded_for_vms_that_are_only_observed() -> None:
    host = Host(vm_mode=Mode.OBSERVE)
    assert not host.plan().load
    host.vm_mode = Mode.ENFORCE
    assert host.plan().load


def test_switched_off() -> None:
    assert Host(use=WarpUse.OFF).plan() == WarpPlan(detail="switched off")


def test_a_scheduler_that_somebody_loaded_by_hand_is_used_and_left_there() -> None:
    plan = Host(use=WarpUse.ON, value=LOADED).plan()
    assert (plan.mechanism, plan.load) == (Mechanism.SCHED_EXT, False)


def test_beside_somebody_elses_scheduler_there_are_no_warps_and_no_try() -> None:
    plan = Host(others="scx_lavd").plan()
    assert (plan.mechanism, plan.load) == (Mechanism.NONE, False)
    assert "'scx_lavd' of another tool decides" in plan.problem


def test_a_host_without_sched_ext_says_so_and_takes_the_next() -> None:
    plan = Host((Mechanism.BVT, Mechanism.SLICE)).plan()
    assert (plan.mechanism, plan.load) == (Mechanism.BVT, False)
    assert plan.problem == "warps: our sched_ext scheduler cannot be loaded: sched_ext was looked for"


def test_thrown_out_it_is_said_the_next_mechanism_serves_and_it_is_tried_again() -> None:
    host = Host()
    host.tries(3)
    host.value = EJECTED
    plan = host.plan()
    assert (plan.mechanism, plan.load) == (Mechanism.BVT, False)
    assert plan.problem.startswith("warps: the kernel threw our sched_ext scheduler out, failure 1 of at most")
    ejected_s = host.now_s
    [again_s, *_] = host.tries(60)
    assert again_s - ejected_s == FIRST_RETRY_S
    assert host.plan().mechanism is Mechanism.SCHED_EXT
    assert host.plan().problem == ""


def test_it_is_never_tried_in_a_loop() -> None:
    host = Host(refuses=True)
    tried = host.tries(int(MOST_TRIES * LONGEST_RETRY_S))
    assert len(tried) == MOST_TRIES
    pauses = [later - before for before, later in pairwise(tried)]
    assert pauses == sorted(pauses), "ever longer"
    assert pauses[0] > FIRST_RETRY_S
    assert max(pauses) <= LONGEST_RETRY_S + 1
    assert "not tried again before `equipoise adopt --host h1`" in host.plan().problem
    host.adoptions += 1
    assert host.plan().load


def test_one_that_is_thrown_out_again_and_again_is_not_forgiven_in_between() -> None:
    host = Host()
    loads = 0
    for _ in range(20_000):
        loads += host.plan().mechanism is Mechanism.SCHED_EXT
        if host.value == LOADED and loads and host.now_s % 5 == 0:
            host.value = EJECTED
    assert host.memory.failures == MOST_TRIES


def test_a_calm_hour_makes_good_for_failures() -> None:
    host = Host()
    host.tries(2)
    host.value = EJECTED
    host.tries(20)
    assert host.memory.failures == 1
    host.tries(int(CALM_S) + 1)
    assert host.memory.failures == 0


def test_what_was_left_of_one_that_was_thrown_out_while_no_agent_looked_counts() -> None:
    host = Host(value=EJECTED, owned=OURS)
    plan = host.plan()
    assert not plan.load
    assert "the kernel threw" in plan.problem


@pytest.mark.parametrize("owned", [OURS, replace(OURS, external=True)], ids=["at once", "later"])
def test_one_that_somebody_removed_stays_a_goal_and_the_next_mechanism_serves(owned: Owned) -> None:
    host = Host(owned=owned, refuses=True, memory=LadderMemory(asked=True, settings=(WarpUse.SCHED_EXT, 0)))
    plan = host.plan()
    assert (plan.mechanism, plan.load, plan.problem) == (Mechanism.BVT, True, "")
    assert host.memory.failures == 0


def test_observing_nothing_fails_because_nothing_is_written() -> None:
    host = Host(mode=Mode.OBSERVE)
    assert len(host.tries(50)) == 50
    assert host.memory.failures == 0
