"""Steps of `auto` on memory, disks and uplinks: when they are tried and on whom, and the ladder with them in a loop.

The loops run against small models of a host's memory, disk and uplink: the simulated host has none of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from manager.control.resolve import validate
from manager.control.resource_decision import ResourceDecision, resource_decision
from manager.model.decision import Decision, ResourceControl, Snapshot, VmView
from manager.model.knobs import Knob
from manager.model.registration import HostSpec, Mode, VmClass
from manager.model.resource_use import ALL_DISKS, DeviceUse, DiskUse, LinkUse, ResourceUse, VmResources, Weighing
from manager.model.rules import DiskRules, MemoryRules, NetworkRules, UplinkRules
from policies.auto import POLICY as AUTO
from policies.auto_memory import AutoMemory
from policies.auto_resources import allowed_steps, resource_candidates, resource_goals
from policies.auto_step_goals import step_goals
from policies.auto_steps import LadderStep, StepCandidate, StepInForce, StepKind, StepsMemory, StepTrial
from policies.auto_steps_told import told_steps
from tests.unit.build import view
from tests.unit.test_auto import app_model, application, moment
from tests.unit.test_auto import vm as serving

NOW_S = 1000.0
STEPS = HostSpec("h1", memory=MemoryRules(steps=True), disk=DiskRules(steps=True), network=NetworkRules(steps=True))
ALL = frozenset({Knob.MEMORY_PROTECTION, Knob.MEMORY_CEILING, Knob.BFQ_WEIGHT, Knob.DISK_CEILING})
SDA = 2048


def batch(name: str) -> VmView:
    return replace(view(name, VmClass.BATCH, weight=1), cpu_share=0.05)


def link(name: str, sent_mbit: float, **fields: float) -> LinkUse:
    return LinkUse(name, 0.0, sent_mbit * 125_000, 0.0, sent_mbit * 100, fields.pop("dropped", 0.0), **fields)


def disk(device: str, requests: float) -> DiskUse:
    return DiskUse(device, requests * 4096, 0.0, requests)


def short(**fields: float) -> ResourceUse:
    """The shop is short of memory while `hog` grows, most of all that grow."""
    shop = VmResources("shop-web", memory_pressure=0.5, refaults_per_s=400.0)
    grows = {"growth_bytes_per_s": 9e6, **fields}
    return ResourceUse(
        (shop, VmResources("hog", **grows), VmResources("meek", growth_bytes_per_s=0.9e6)), memory_pressure=0.4
    )


def slow(*rates: tuple[str, float], weighing: Weighing | None = None, latency_ms: float = 30.0) -> ResourceUse:
    """The shop makes 10 of 100 requests a second of a busy disk."""
    vms = tuple(VmResources(name, disks=(disk("sda", rate),)) for name, rate in (("shop-web", 10.0), *rates))
    return ResourceUse(vms, (DeviceUse("sda", 409_600.0, 100.0, 0.9, latency_ms, weighing, SDA),))


def flooded(hog_mbit: float = 940.0, uplink: LinkUse | None = None) -> ResourceUse:
    vms = (
        VmResources("shop-web", interfaces=(link("vnet0", 20),)),
        VmResources("hog", interfaces=(link("vnet1", hog_mbit),)),
    )
    return ResourceUse(vms, uplinks=(uplink or link("eth0", 960.0, speed_bytes_per_s=125e6),))


def seen(use: ResourceUse, host: HostSpec = STEPS, knobs: frozenset[Knob] = ALL) -> Snapshot:
    vms = [serving("shop", 0.1, 0.0), batch("hog"), batch("meek")]
    names = [vm.name for vm in vms]
    return replace(
        moment(NOW_S, application("shop", [150] * 6, 100.0, NOW_S), vms=vms),
        host=host,
        resources=use,
        resource_knobs=dict.fromkeys(names, knobs),
        divisible_uplinks=frozenset({"eth0"}),
    )


def offered(snapshot: Snapshot, *in_force: StepInForce, measured_ms: float = 150.0) -> list[StepCandidate]:
    """The best for its cost first."""
    found = resource_candidates(snapshot, [app_model("shop", 0, measured_ms)], in_force)
    return sorted(found, key=lambda each: -each.worth)


def steps_of(candidates: Sequence[StepCandidate]) -> list[tuple[StepKind, str]]:
    return [each.step.knob for each in candidates]


def kept(candidate: StepCandidate) -> StepInForce:
    return StepInForce(candidate, NOW_S, 0.3, NOW_S)


HOG_DISK, BOTH_DISK = (("hog", 80.0),), (("hog", 40.0), ("meek", 45.0))
MEMORY_STEPS = [(StepKind.MEMORY_PROTECTION, "shop-web"), (StepKind.MEMORY_CEILING, "hog")]


@pytest.mark.parametrize(
    ("use", "steps"),
    [
        (short(), MEMORY_STEPS),
        (slow(*HOG_DISK, weighing=Weighing.BFQ), [(StepKind.DISK_WEIGHTS, ""), (StepKind.DISK_CEILING, "hog")]),
        (slow(*HOG_DISK), [(StepKind.DISK_CEILING, "hog")]),
        (slow(*HOG_DISK, weighing=Weighing.COST), [(StepKind.DISK_CEILING, "hog")]),
        (slow(("hog", 30.0), ("meek", 30.0)), [(StepKind.DISK_CEILING, "")]),
        (flooded(), [(StepKind.UPLINK_SHARES, "")]),
        # No pressure, no suspect, or a signal that is missing.
        (ResourceUse(), []),
        (replace(short(), vms=(VmResources("shop-web"), *short().vms[1:])), []),
        (replace(short(), memory_pressure=0.01), []),
        (replace(short(), memory_pressure=None), MEMORY_STEPS),
        (short(growth_bytes_per_s=0.4e6), MEMORY_STEPS[:1]),
        (slow(*HOG_DISK, latency_ms=2.0), []),
        (replace(slow(*HOG_DISK), disks=()), []),
        (replace(slow(*HOG_DISK), vms=slow(*HOG_DISK).vms[1:]), []),
        (slow(("hog", 20.0)), []),
        (flooded(uplink=link("eth0", 500.0, speed_bytes_per_s=125e6)), []),
        (flooded(uplink=link("eth0", 960.0)), []),
        (flooded(uplink=link("eth1", 960.0, speed_bytes_per_s=125e6)), []),
        (flooded(hog_mbit=100.0), []),
        (flooded(uplink=link("eth0", 500.0, speed_bytes_per_s=125e6, dropped=50.0)), [(StepKind.UPLINK_SHARES, "")]),
    ],
)
def test_protection_comes_before_holding_back_and_only_under_pressure_that_is_measured(
    use: ResourceUse, steps: list[tuple[StepKind, str]]
) -> None:
    assert steps_of(offered(seen(use))) == steps


def test_nothing_is_offered_while_the_sla_is_met_nor_without_leave_nor_for_what_is_only_observed() -> None:
    assert offered(seen(short()), measured_ms=50.0) == []
    assert offered(seen(short(), HostSpec("h1"))) == []
    snapshot = seen(short())
    observed = tuple(replace(vm, mode=Mode.OBSERVE) if vm.critical else vm for vm in snapshot.vms)
    assert offered(replace(snapshot, vms=observed)) == []


def test_on_cgroup_v1_protection_is_swappiness() -> None:
    assert steps_of(offered(seen(short(), knobs=frozenset({Knob.SWAPPINESS, Knob.MEMORY_CEILING})))) == MEMORY_STEPS


def test_what_the_host_lacks_or_always_does_is_not_a_step() -> None:
    assert offered(seen(short(), knobs=frozenset())) == []
    always = replace(
        STEPS,
        memory=MemoryRules(protect=True, ceilings=True, steps=True),
        disk=DiskRules(weights=True, ceilings=True, steps=True),
        network=NetworkRules(shares=True, steps=True),
    )
    for use in (short(), slow(*HOG_DISK, weighing=Weighing.BFQ), flooded()):
        assert offered(seen(use, always)) == []


def test_a_step_in_force_is_not_offered_again_but_a_further_ceiling_is_until_the_last() -> None:
    assert steps_of(offered(seen(short()), *map(kept, offered(seen(short()))))) == []
    assert offered(seen(flooded()), *map(kept, offered(seen(flooded())))) == []
    in_force: tuple[StepInForce, ...] = ()
    amounts = []
    for _ in range(3):
        [ceiling] = offered(seen(slow(*HOG_DISK)), *in_force)
        amounts.append(ceiling.step.amount)
        in_force = (kept(ceiling),)
    assert amounts == pytest.approx([40.0, 20.0, 10.0])
    assert offered(seen(slow(*HOG_DISK)), *in_force) == []


def test_each_vm_of_the_application_that_is_short_is_protected_the_shortest_first() -> None:
    snapshot, protected = seen(short()), StepKind.MEMORY_PROTECTION
    second = replace(serving("shop", 0.1, 0.0), spec=view("shop-db").spec)
    shorter = replace(
        snapshot,
        vms=(*snapshot.vms, second),
        resources=replace(short(), vms=(*short().vms, VmResources("shop-db", memory_pressure=0.2))),
        resource_knobs={**snapshot.resource_knobs, "shop-db": ALL},
    )
    first = next(each for each in offered(shorter) if each.step.kind is protected)
    then = next(each for each in offered(shorter, kept(first)) if each.step.kind is protected)
    assert (first.step.target, then.step.target) == ("shop-web", "shop-db")


def test_where_the_rate_of_an_uplink_is_set_it_is_saturated_at_that() -> None:
    half = replace(STEPS, network=NetworkRules(steps=True, uplinks=(UplinkRules("eth0", 500),)))
    use = flooded(uplink=link("eth0", 480.0, speed_bytes_per_s=125e6))
    assert steps_of(offered(seen(use, half))) == [(StepKind.UPLINK_SHARES, "")]


def test_disks_that_the_kernel_does_not_tell_apart_can_be_weighted_and_get_no_ceiling() -> None:
    use = slow(*HOG_DISK, weighing=Weighing.BFQ)
    together = tuple(
        replace(vm, disks=(replace(vm.disks[0], device=ALL_DISKS, requests_per_s=None),)) for vm in use.vms
    )
    assert steps_of(offered(seen(replace(use, vms=together)))) == [(StepKind.DISK_WEIGHTS, "")]


def step_in_force(kind: StepKind, target: str = "", amount: float = 1.0, number: int = 0) -> StepInForce:
    return kept(StepCandidate(LadderStep(kind, target, amount, "shop", disk=number), 0.3, 0.1, 0.0, "hog is noisy"))


EVERY_STEP = (
    step_in_force(StepKind.MEMORY_PROTECTION, "shop-web"),
    step_in_force(StepKind.MEMORY_CEILING, "hog"),
    step_in_force(StepKind.DISK_WEIGHTS),
    step_in_force(StepKind.DISK_CEILING, "hog", 20.0, SDA),
    step_in_force(StepKind.DISK_CEILING, "", 30.0, SDA),
    step_in_force(StepKind.UPLINK_SHARES),
)


def test_steps_become_goals_that_are_valid_with_the_lower_of_two_ceilings() -> None:
    goals = tuple(resource_goals(StepsMemory(EVERY_STEP), seen(short())))
    assert validate(Decision(resources=goals), seen(short())) is None
    assert {(goal.control, goal.vm, goal.requests_per_s) for goal in goals} == {
        (ResourceControl.MEMORY_PROTECTION, "shop-web", 0.0),
        (ResourceControl.MEMORY_CEILING, "hog", 0.0),
        (ResourceControl.DISK_WEIGHTS, "", 0.0),
        (ResourceControl.DISK_CEILING, "hog", 20.0),
        (ResourceControl.DISK_CEILING, "meek", 30.0),
        (ResourceControl.UPLINK_SHARES, "", 0.0),
    }
    assert {goal.reason for goal in goals} == {"auto: for the SLA of shop (kept)"}


def test_who_became_another_kind_of_vm_gets_no_goal() -> None:
    swapped = StepsMemory(
        (step_in_force(StepKind.MEMORY_PROTECTION, "hog"), step_in_force(StepKind.MEMORY_CEILING, "shop-web"))
    )
    assert tuple(resource_goals(swapped, seen(short()))) == ()


def test_steps_end_with_the_leave_to_take_them() -> None:
    trial = StepTrial(EVERY_STEP[-1].candidate, NOW_S, {})
    ladder = StepsMemory(EVERY_STEP[:5], trial, samples={"shop": (1.0,)})
    assert allowed_steps(ladder, seen(short())) is ladder
    left = allowed_steps(ladder, seen(short(), replace(STEPS, memory=MemoryRules(), network=NetworkRules())))
    assert [each.step.kind for each in left.in_force] == [
        StepKind.DISK_WEIGHTS,
        StepKind.DISK_CEILING,
        StepKind.DISK_CEILING,
    ]
    assert (left.trial, left.samples, left.changed_s) == (None, {}, NOW_S)


@pytest.mark.parametrize(
    ("pinning", "kept_kind", "tried"), [(True, StepKind.PIN, StepKind.FLOAT), (False, StepKind.FLOAT, StepKind.PIN)]
)
def test_a_placement_is_no_step_any_more_where_the_host_is_to_have_it(
    pinning: bool, kept_kind: StepKind, tried: StepKind
) -> None:
    """Else the other one would be tried beside it, in vain."""
    ladder = StepsMemory((step_in_force(kept_kind),))
    assert allowed_steps(ladder, seen(short(), replace(STEPS, pinning=not pinning))) is ladder
    now = seen(short(), replace(STEPS, pinning=pinning))
    left = allowed_steps(ladder, now)
    assert left.in_force == ()
    on_trial = replace(left, trial=StepTrial(step_in_force(tried).candidate, NOW_S, {}))
    assert step_goals(on_trial, now).pinning is not pinning


def test_each_step_is_told() -> None:
    told = " ".join(told_steps(StepsMemory(EVERY_STEP), "shop", "p95", NOW_S, acts=True))
    for words in (
        "The memory of shop-web is protected",
        "Batch VM hog has a ceiling of memory",
        "Critical VMs are weighted over batch VMs on disks",
        "Batch VM hog may make 20 requests/s of a disk",
        "Each batch VM may make 30 requests/s of a disk",
        "Uplinks are divided, critical VMs first",
    ):
        assert words in told
    others = " ".join(told_steps(StepsMemory(EVERY_STEP), "mail", "p95", NOW_S, acts=True))
    assert "Uplinks are divided" in others, "it concerns all"
    assert "hog" not in others


Model = Callable[[ResourceDecision, float], tuple[float, ResourceUse]]
"""From what is in force and how much `hog` wants, 0 .. 1, to the shop's p95 in milliseconds and what is measured."""


def memory_model(decided: ResourceDecision, wants: float) -> tuple[float, ResourceUse]:
    taken = 0.0 if "shop-web" in decided.protected else 0.75 * wants
    shop = VmResources("shop-web", memory_pressure=taken, refaults_per_s=500 * taken)
    hog = VmResources("hog", growth_bytes_per_s=20e6 * wants)
    return 40.0 / (1 - taken), ResourceUse((shop, hog), memory_pressure=0.5 * wants)


def disk_model(decided: ResourceDecision, wants: float) -> tuple[float, ResourceUse]:
    """One of 500 requests/s in the order they come: no weights act. The shop makes 50 of these."""
    ceiling = next((goal.requests_per_s for goal in decided.disk_ceilings if goal.vm == "hog"), math.inf)
    rate = min(430.0 * wants, ceiling)
    busy = min((50 + rate) / 500, 0.97)
    latency_ms = 4 / (1 - busy)
    vms = (VmResources("shop-web", disks=(disk("sda", 50.0),)), VmResources("hog", disks=(disk("sda", rate),)))
    device = DeviceUse("sda", (50 + rate) * 4096, 50 + rate, busy, latency_ms, None, SDA)
    return 12 * latency_ms, ResourceUse(vms, (device,))


def uplink_model(decided: ResourceDecision, wants: float) -> tuple[float, ResourceUse]:
    """Of 1 Gbit/s, which queues what is above."""
    full = bool(wants) and not decided.uplink_shares
    sent_mbit = wants * (930.0 if full else 880.0)
    vms = (
        VmResources("shop-web", interfaces=(link("vnet0", 30),)),
        VmResources("hog", interfaces=(link("vnet1", sent_mbit),)),
    )
    return 300.0 if full else 50.0, ResourceUse(vms, uplinks=(link("eth0", 30 + sent_mbit, speed_bytes_per_s=125e6),))


def unrelated_model(decided: ResourceDecision, wants: float) -> tuple[float, ResourceUse]:
    """The disk is slow, and the shop is slow for another reason."""
    _, use = disk_model(decided, wants)
    return 180.0, use


@dataclass
class LadderLoop:
    """Ticks of 5 s under `auto` of a host of that model."""

    model: Model
    memory: object = None
    tick: int = 0
    decision: Decision = field(default_factory=Decision)
    p95_ms: list[float] = field(default_factory=list)

    def run(self, ticks: int, wants: float = 1.0) -> None:
        for _ in range(ticks):
            p95_ms, use = self.model(resource_decision(self.decision.resources, STEPS), wants)
            now_s = NOW_S + 5.0 * self.tick
            wobble = 1 + 0.05 * math.sin(self.tick)
            snapshot = replace(
                seen(use), now_s=now_s, applications=(application("shop", [p95_ms * wobble] * 6, 100.0, now_s),)
            )
            self.decision = AUTO.decide(snapshot, self.memory)
            assert validate(self.decision, snapshot) is None
            self.memory = self.decision.memory
            self.p95_ms.append(p95_ms)
            self.tick += 1

    @property
    def ladder(self) -> StepsMemory:
        assert isinstance(self.memory, AutoMemory)
        return self.memory.ladder

    @property
    def controls(self) -> list[ResourceControl]:
        return [goal.control for goal in self.decision.resources]


@pytest.mark.parametrize(
    ("model", "steps"),
    [
        (memory_model, [ResourceControl.MEMORY_PROTECTION]),
        (disk_model, [ResourceControl.DISK_CEILING]),
        (uplink_model, [ResourceControl.UPLINK_SHARES]),
    ],
)
def test_in_a_loop_the_step_that_helps_is_kept_and_goes_with_its_cause(
    model: Model, steps: list[ResourceControl]
) -> None:
    loop = LadderLoop(model)
    loop.run(36)
    assert loop.controls == steps
    assert [each.brought > 0.2 for each in loop.ladder.in_force] == [True]
    assert loop.p95_ms[0] > 100.0 > max(loop.p95_ms[-10:])
    loop.run(100, wants=0.0)
    assert loop.controls == []
    assert loop.ladder.in_force == ()


def test_in_a_loop_a_noisy_neighbour_is_held_back_step_by_step() -> None:
    loop = LadderLoop(disk_model)
    ceilings = []
    for _ in range(100):
        loop.run(1)
        ceilings += [goal.requests_per_s for goal in loop.decision.resources]
    assert sorted(set(ceilings), reverse=True) == pytest.approx([215.0, 107.5])


def test_in_a_loop_what_does_not_help_is_taken_back_and_cools_down() -> None:
    loop = LadderLoop(unrelated_model)
    in_force: list[bool] = []
    for _ in range(120):
        loop.run(1)
        in_force.append(bool(loop.controls))
    assert any(in_force), "it is tried"
    assert loop.ladder.in_force == ()
    assert loop.ladder.cooling["shop/disk-ceiling/hog/0.5"].times >= 1
    assert sum(in_force) < len(in_force) / 2


def test_in_a_loop_nothing_is_set_while_pressure_is_not_measured() -> None:
    def blind(decided: ResourceDecision, wants: float) -> tuple[float, ResourceUse]:
        return memory_model(decided, wants)[0], ResourceUse((VmResources("shop-web"), VmResources("hog")))

    loop = LadderLoop(blind)
    for _ in range(40):
        loop.run(1)
        assert loop.controls == []
