"""The batch VM that takes most of the memory's bandwidth is held back while an SLA is violated, and let go of again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from manager.control.cache_plan import BATCH_GROUP, HELD_GROUP
from manager.loop.observer import Clock, LoopSettings
from manager.loop.status import tick_status
from manager.loop.tick import ControlLoop, TickResult
from manager.model.cache import DEFAULT, BandwidthResource, BandwidthUnit, Slot
from manager.model.decision import BandwidthGoal, Decision, Snapshot
from manager.model.histogram import Histogram
from manager.model.knobs import Knob
from manager.model.limits import EVERYTHING
from manager.model.registration import CacheControl, Mode, Sla
from manager.model.window import Window
from tests.fakes.cache_host import CACHE, CacheHost
from tests.fakes.resctrl import FakeResctrl
from tests.loop.test_cache import SHOP, CacheRig

LIMIT = BandwidthResource("MB", 10, 10, 100, BandwidthUnit.PERCENT, True, 5, (0, 1))
GB = 10**9
SLOT_S = 5.0


class HoldRig(CacheRig):
    """A shop with an SLA of 100 ms beside two batch VMs, one of which goes through memory.

    ``ahead_s``: how far the wall clock was set ahead.
    """

    ahead_s = 0.0

    def clock(self) -> Clock:
        return Clock(self.now_s + self.ahead_s, self.now_s)

    def limit(self) -> int:
        """What the greedy VM's group is held to in domain 0, in percent."""
        return self.host.resctrl.groups[self.host.group_of("hog")].values.get(Slot("MB", 0), 100)

    def slot(self, percentile_ms: Callable[[int], float], *, traffic: bool = True) -> TickResult:
        """A slot passes; the greedy VM takes what it may, and ``percentile_ms`` makes response times of that."""
        took = percentile_ms(self.limit())
        for name, gbps in (("hog", self.limit() / 10), ("crunch", 1), ("web", 1)) if traffic else ():
            self.host.use(name, int(gbps * GB * SLOT_S))
        self.now_s += SLOT_S
        histogram = Histogram.of([took * 1000] * 50)
        end_s = self.now_s + self.ahead_s
        window = Window("shop", end_s - SLOT_S, end_s, histogram, 10.0)
        return self.loop.tick(self.assignment, {"shop": (window,)})

    def slots(self, count: int, percentile_ms: Callable[[int], float]) -> list[TickResult]:
        return [self.slot(percentile_ms) for _ in range(count)]


def made(folder: Path, rmids: int = 32, bandwidths: tuple[BandwidthResource, ...] = (LIMIT,)) -> HoldRig:
    rig = HoldRig(folder, CacheHost(resctrl=FakeResctrl((CACHE,), bandwidths, rmids=rmids)))
    for name, kind in (("web", "critical"), ("hog", "batch"), ("crunch", "batch")):
        rig.host.boot(name, 2)
        rig.register(name, kind)
    rig.serve("shop", "4 ways", "web", sla=Sla(100.0))
    rig.control(cache=CacheControl.ON, pinning=False)
    rig.tick()
    return rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HoldRig]:
    rig = made(tmp_path)
    yield rig
    rig.journal.close()


def slow(_limit: int) -> float:
    return 300.0


def better_when_held(limit: int) -> float:
    """Each step helps, and at half of it the SLA is met."""
    return 80.0 if limit <= 50 else 100.0 + 4 * (limit - 50)


@dataclass
class Limiting:
    """A policy that limits the memory bandwidth of batch VMs; ``seen``: what it saw last."""

    goals: tuple[BandwidthGoal, ...] | None = None
    on_trial: bool = False
    seen: Snapshot | None = None
    name: str = "limiting"
    summary: str = "As the test says."

    def decide(self, snapshot: Snapshot, memory: object) -> Decision:
        self.seen = snapshot
        return Decision(bandwidths=self.goals, on_trial=self.on_trial)


@pytest.fixture
def decided(rig: HoldRig) -> tuple[HoldRig, Limiting]:
    policy = Limiting()
    settings = LoopSettings("h1", 1.0, 30.0, 20)
    rig.loop = ControlLoop(rig.host, rig.journal, {"limiting": policy}, settings, rig.clock, EVERYTHING)
    rig.control(policy="limiting")
    return rig, policy


def test_a_policy_that_limits_takes_the_place_of_the_law(decided: tuple[HoldRig, Limiting]) -> None:
    rig, policy = decided
    policy.goals = ()
    rig.slots(20, slow)
    assert (rig.limit(), rig.host.group_of("hog")) == (100, BATCH_GROUP), "it names nobody"
    policy.goals = (BandwidthGoal("hog", 0.4, "limiting: too much"),)
    results = rig.slots(10, slow)
    assert (rig.limit(), rig.host.group_of("hog")) == (40, HELD_GROUP)
    assert reasons(results) == ["limiting: too much"]
    policy.goals = ()
    rig.slot(slow)
    assert rig.host.group_of("hog") == BATCH_GROUP
    policy.goals = None
    rig.slots(40, better_when_held)
    assert rig.limit() < 100, "left to the law again"


def test_a_policy_sees_traffic_and_that_it_can_be_limited(decided: tuple[HoldRig, Limiting]) -> None:
    rig, policy = decided
    policy.goals = ()
    rig.slots(3, slow)
    assert policy.seen is not None
    assert policy.seen.memory_limits
    traffic = {vm.name: vm.memory_bytes_per_s for vm in policy.seen.vms}
    assert traffic == {"hog": 10 * GB, "crunch": GB, "web": GB}
    rig.control(cache=CacheControl.OFF)
    rig.slots(2, slow)
    assert not policy.seen.memory_limits
    assert {vm.memory_bytes_per_s for vm in policy.seen.vms} == {None}


def test_while_a_policy_judges_a_change_no_other_ways_are_tried(decided: tuple[HoldRig, Limiting]) -> None:
    rig, policy = decided
    rig.serve("shop", "auto", "web", sla=Sla(100.0))
    policy.goals, policy.on_trial = (), True
    rig.slots(20, slow)
    assert policy.seen is not None
    assert not policy.seen.ways_trial
    policy.on_trial = False
    seen = []
    for _ in range(20):
        rig.slot(slow)
        seen.append(policy.seen.ways_trial)
    assert any(seen)


def reasons(results: list[TickResult]) -> list[str]:
    return [
        one.reason for result in results for one in result.records if one.knob is Knob.CACHE_GROUP and one.vm == "hog"
    ]


def test_the_guilty_vm_is_held_back_step_by_step_until_the_sla_is_met(rig: HoldRig) -> None:
    results = rig.slots(120, better_when_held)
    assert rig.host.group_of("hog") == HELD_GROUP
    assert (rig.host.group_of("crunch"), rig.host.group_of("web")) == (BATCH_GROUP, SHOP)
    assert rig.limit() <= 50
    assert rig.host.resctrl.groups[BATCH_GROUP].values[Slot("MB", 0)] == 100
    assert reasons(results)[0] == "for shop: hog takes 10 of 12 GB/s at 3 times the SLA"
    limits = [one.after for result in results for one in result.records if one.after.startswith(f"{HELD_GROUP} ")]
    steps = [int(text.rpartition("=")[2]) for text in limits]
    assert steps[0] == 90
    assert steps == sorted(set(steps), reverse=True)
    assert steps[-1] == rig.limit()
    assert rig.host.measured_in("hog") == {HELD_GROUP}, "alone there: its traffic stays known"
    assert results[-1].cache.measured.vms["hog"][0].total == rig.limit() * GB / 10
    status = tick_status(results[-1], 0, 0, True).cache
    assert status is not None
    assert {one.name: one.bandwidth for one in status.groups} == {
        DEFAULT: "",
        SHOP: "",
        BATCH_GROUP: "",
        HELD_GROUP: f"{rig.limit()} %",
    }


def test_it_is_given_back_where_that_did_not_help(rig: HoldRig) -> None:
    results = []
    while len(reasons(results)) < 2:
        results.append(rig.slot(slow))
        assert len(results) < 60
    assert rig.host.group_of("hog") == BATCH_GROUP
    assert HELD_GROUP not in rig.host.resctrl.groups
    assert reasons(results)[-1] == "for shop: holding back did not help: 3 times the SLA, 3 before"


def test_with_slack_it_is_let_go_of(rig: HoldRig) -> None:
    rig.slots(120, better_when_held)
    results = rig.slots(200, lambda _limit: 10.0)
    assert rig.host.group_of("hog") == BATCH_GROUP
    assert "below 0.7 of the SLA" in reasons(results)[-1]


@pytest.mark.parametrize("how", ["off", "release", "observe", "crash"])
def test_it_goes_back_with_all_else(rig: HoldRig, how: str) -> None:
    rig.slots(20, better_when_held)
    assert rig.host.group_of("hog") == HELD_GROUP
    if how == "crash":
        rig.crash()
        rig.tick()
        assert rig.host.group_of("hog") == BATCH_GROUP, "what is not known any more is not held back"
    elif how == "release":
        result = rig.loop.release("test")
        assert {one.reason for one in result.cache.outcomes} == {"test"}
    else:
        rig.control(**({"cache": CacheControl.OFF} if how == "off" else {"mode": Mode.OBSERVE}))
        rig.tick()
    assert HELD_GROUP not in rig.host.resctrl.groups
    assert how == "crash" or list(rig.host.resctrl.groups) == [DEFAULT]


def test_a_vm_that_ends_is_held_back_no_more(rig: HoldRig) -> None:
    rig.slots(20, better_when_held)
    rig.host.stop("hog")
    rig.tick()
    assert HELD_GROUP not in rig.host.resctrl.groups


@pytest.mark.parametrize(
    "unable", ["no monitoring", "no limits", "observed", "shop observed", "no SLA", "nothing measured", "given up"]
)
def test_nobody_is_held_back_without_guilt_an_sla_or_leave(tmp_path: Path, unable: str) -> None:
    rig = made(tmp_path, 0 if unable == "no monitoring" else 32, () if unable == "no limits" else (LIMIT,))
    if unable == "observed":
        rig.assignment = replace(
            rig.assignment,
            vms=tuple(replace(one, mode=Mode.OBSERVE) for one in rig.assignment.vms if one.name != "web"),
        )
    elif unable == "shop observed":
        rig.serve("shop", "4 ways", "web", sla=Sla(100.0), mode=Mode.OBSERVE)
    elif unable == "no SLA":
        rig.serve("shop", "4 ways", "web")
    elif unable == "nothing measured":
        for group in rig.host.resctrl.groups.values():
            for one in (group, *group.monitored.values()):
                one.counters = {(domain, "mbm_total_bytes"): "Unavailable" for domain in (0, 1)}
    elif unable == "given up":
        rig.slots(20, better_when_held)
        rig.host.resctrl.groups[HELD_GROUP].values[Slot("MB", 0)] = 30
        rig.tick()
        assert rig.host.group_of("hog") == HELD_GROUP, "it stays where somebody else wants it"
    for _ in range(30):
        rig.slot(slow, traffic=unable != "nothing measured")
        assert (HELD_GROUP in rig.host.resctrl.groups) is (unable == "given up")
    if unable == "given up":
        assert rig.limit() == 30
    rig.journal.close()


def test_one_trial_runs_at_a_time(rig: HoldRig) -> None:
    rig.serve("shop", "auto", "web", sla=Sla(100.0))
    seen = set()
    for _ in range(200):
        rig.slot(slow)
        keeper = rig.loop._cache
        seen.add((keeper._judged["shop"].memory.before is not None, keeper._held.memory.before is not None))
    assert seen == {(False, False), (True, False), (False, True)}, "each has its turn"


def test_a_window_counts_once(rig: HoldRig) -> None:
    rig.slot(slow)
    window = Window("shop", rig.now_s - SLOT_S, rig.now_s, Histogram.of([300_000.0] * 50), 10.0)
    for _ in range(25):  # while it is not stale
        rig.now_s += 1
        rig.host.use("hog", 10 * GB)
        rig.loop.tick(rig.assignment, {"shop": (window,)})
    assert HELD_GROUP not in rig.host.resctrl.groups


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_judging_goes_on_when_the_clock_is_set(rig: HoldRig, ahead_s: float) -> None:
    rig.serve("shop", "auto", "web", sla=Sla(100.0))
    rig.slots(20, better_when_held)
    rig.ahead_s = ahead_s
    keeper = rig.loop._cache
    held, ways = keeper._held.window_s, keeper._judged["shop"].window_s
    rig.slots(2, better_when_held)
    assert (keeper._held.window_s, keeper._judged["shop"].window_s) == (held + 2 * SLOT_S, ways + 2 * SLOT_S)


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_with_slack_it_is_let_go_of_also_when_the_clock_was_set(rig: HoldRig, ahead_s: float) -> None:
    rig.slots(120, better_when_held)
    rig.ahead_s = ahead_s
    rig.slots(200, lambda _limit: 10.0)
    assert rig.host.group_of("hog") == BATCH_GROUP


def test_while_a_trial_of_holding_back_runs_no_way_is_tried(rig: HoldRig) -> None:
    keeper = rig.loop._cache
    while keeper._held.memory.before is None:
        rig.slot(slow)
    rig.serve("shop", "auto", "web", sla=Sla(100.0))
    for _ in range(25):
        rig.host.use("hog", int((100 - rig.limit()) / 10 * GB * SLOT_S))  # no limit bites, so that the trial goes on
        rig.slot(slow)
        assert keeper._held.memory.before is not None
        assert keeper._judged["shop"].memory.before is None
