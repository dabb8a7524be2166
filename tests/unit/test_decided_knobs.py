"""What a policy decides beside weights: which of it is refused, and what the floor and the agent leave of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.batch import FLOOR_MARGIN, BatchMemory, guard_batch
from manager.control.limit_decision import limit_decision
from manager.control.resolve import Wishes, resolve, validate
from manager.model.decision import (
    ApplicationView,
    BandwidthGoal,
    CpusGoal,
    Decision,
    Explanation,
    IdleGoal,
    QuotaGoal,
    ResourceControl,
    ResourceGoal,
    ShownCause,
    Snapshot,
    VmView,
    WarpGoal,
    WaysGoal,
)
from manager.model.knob_spec import Control
from manager.model.knobs import Knob, KnobKey
from manager.model.law import Law
from manager.model.limits import EVERYTHING, AgentLimits
from manager.model.registration import Application, Mode, Tier, VmClass
from manager.model.window import SlaState
from tests.unit.build import ONLINE, snapshot, view

SHOP = replace(
    snapshot(view("web"), view("batch"), view("crunch", VmClass.BATCH)),
    applications=(ApplicationView(Application("shop", (Tier("web", ("web",)),)), None, SlaState.NO_DATA),),
)
ZERO = frozenset({0})


def cpus(*goals: tuple[object, object]) -> Decision:
    return Decision(cpus=tuple(CpusGoal(vm, held, "why") for vm, held in goals))  # type: ignore[arg-type]


def quotas(*goals: tuple[object, object]) -> Decision:
    return Decision(quotas=tuple(QuotaGoal(vm, pcpus, "why") for vm, pcpus in goals))  # type: ignore[arg-type]


def ways(*goals: tuple[object, object]) -> Decision:
    return Decision(ways=tuple(WaysGoal(app, number, "why") for app, number in goals))  # type: ignore[arg-type]


def bandwidths(*goals: tuple[object, object]) -> Decision:
    return Decision(bandwidths=tuple(BandwidthGoal(vm, share, "why") for vm, share in goals))  # type: ignore[arg-type]


SHOWN = ShownCause("crunch", 0.5, 0.99, 30.0)


def shown(cause: object) -> Decision:
    return Decision(explanations=(Explanation("shop", "", cause),))  # type: ignore[arg-type]


def resources(*goals: tuple[object, ...]) -> Decision:
    return Decision(
        resources=tuple(ResourceGoal(control, vm, "why", *more) for control, vm, *more in goals)  # type: ignore[arg-type]
    )


def warp(*goals: tuple[object, object]) -> Decision:
    return Decision(warps=tuple(WarpGoal(vm, warp_us, "why") for vm, warp_us in goals))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "decision",
    [
        warp(("web", 100_000)),
        warp(),
        shown(SHOWN),
        replace(bandwidths(("crunch", 0.25)), on_trial=True),
        bandwidths(("crunch", 1)),
        bandwidths(),
        replace(cpus(("web", frozenset({0, 9})), ("batch", ZERO)), pinning=False),
        quotas(("web", 0.01), ("batch", 8192)),
        replace(ways(("shop", 1)), idle=(IdleGoal("batch", True, ""),), pinning=True),
        Decision(explanations=(Explanation("shop", "Nothing is needed."),)),
        resources(
            (ResourceControl.MEMORY_PROTECTION, "web"),
            (ResourceControl.MEMORY_CEILING, "crunch"),
            (ResourceControl.DISK_WEIGHTS, ""),
            (ResourceControl.DISK_CEILING, "crunch", 1.0, 2048),
            (ResourceControl.DISK_CEILING, "crunch", 20, 2049),
            (ResourceControl.UPLINK_SHARES, ""),
        ),
    ],
)
def test_valid_decisions(decision: Decision) -> None:
    assert validate(decision, SHOP) is None


@pytest.mark.parametrize(
    ("decision", "objection"),
    [
        (Decision(pinning=1), "says 1 about pinning; use True, False or None"),
        (Decision(idle=None), "holds None instead of idle goals"),
        (
            Decision(idle=(IdleGoal("web", 1, ""),)),
            "holds IdleGoal(vm='web', idle=1, reason='') instead of an idle goal",
        ),
        (Decision(idle=(IdleGoal("web", True, ""),) * 2), "says twice whether VM 'web' is to be idle"),
        (Decision(cpus=[]), "holds [] instead of goals for pCPUs"),
        (Decision(cpus=("web",)), "holds 'web' instead of a goal for pCPUs"),
        (
            Decision(cpus=(QuotaGoal("web", 1.0, ""),)),
            "holds QuotaGoal(vm='web', pcpus=1.0, reason='') instead of a goal for pCPUs",
        ),
        (cpus(("ghost", ZERO)), "names VM 'ghost', which is not a managed VM of this host"),
        (cpus(("web", ZERO), ("web", ZERO)), "gives VM 'web' two sets of pCPUs"),
        (cpus(("web", frozenset({8, 9}))), "gives VM 'web' the pCPUs 8-9, of which none is online"),
        *(
            (cpus(("web", held)), f"gives VM 'web' the pCPUs {held!r}; use a frozenset with at least one pCPU number")
            for held in (frozenset(), {0}, "0", None, frozenset({"0"}), frozenset({-1}), frozenset({True}))
        ),
        (Decision(quotas="web"), "holds 'web' instead of quota goals"),
        (quotas((["web"], 1.0)), "holds QuotaGoal(vm=['web'], pcpus=1.0, reason='why') instead of a quota goal"),
        (quotas(("ghost", 1.0)), "names VM 'ghost', which is not a managed VM of this host"),
        (quotas(("web", 1.0), ("web", 1.0)), "gives VM 'web' two quotas"),
        *(
            (quotas(("web", pcpus)), f"gives VM 'web' the quota {pcpus!r}; use pCPUs from 0.01 to 8192")
            for pcpus in (0.009, 0, -1.0, 8193, float("nan"), float("inf"), True, "1", None)
        ),
        (Decision(resources=[]), "holds [] instead of goals for memory, disks and uplinks"),
        (Decision(resources=("web",)), "holds 'web' instead of a goal for memory, disks or uplinks"),
        (
            resources((ResourceControl.MEMORY_PROTECTION, "crunch")),
            "names critical VM 'crunch', which is not a managed critical VM of this host",
        ),
        (
            resources((ResourceControl.MEMORY_CEILING, "web")),
            "names batch VM 'web', which is not a managed batch VM of this host",
        ),
        (
            resources((ResourceControl.DISK_CEILING, "ghost", 10.0)),
            "names batch VM 'ghost', which is not a managed batch VM of this host",
        ),
        (
            resources((ResourceControl.DISK_WEIGHTS, "web")),
            "gives VM 'web' disk weights, which are of the whole host; name no VM",
        ),
        *(
            (
                resources((ResourceControl.DISK_CEILING, "crunch", rate)),
                f"gives VM 'crunch' a ceiling of {rate!r} requests/s; use a number of at least 1",
            )
            for rate in (0, 0.9, -1.0, float("nan"), float("inf"), "5", None)
        ),
        (resources(*((ResourceControl.MEMORY_CEILING, "crunch"),) * 2), "gives VM 'crunch' memory ceiling twice"),
        (resources(*((ResourceControl.UPLINK_SHARES, ""),) * 2), "gives the host uplink shares twice"),
        (Decision(explanations=["shop"]), "holds ['shop'] instead of explanations"),
        (Decision(explanations=("shop",)), "holds 'shop' instead of an explanation"),
        (
            Decision(explanations=(Explanation("shop", None),)),  # type: ignore[arg-type]
            "holds Explanation(application='shop', text=None, cause=None) instead of an explanation",
        ),
        (
            Decision(explanations=(Explanation("ghost", ""),)),
            "explains application 'ghost', which is not a managed application of this host",
        ),
        (Decision(explanations=(Explanation("shop", ""),) * 2), "explains application 'shop' twice"),
        (warp(("web", 1), ("web", 2)), "gives VM 'web' two warps"),
        (warp(("ghost", 1)), "names VM 'ghost', which is not a managed VM of this host"),
        *(
            (warp(("web", warp_us)), f"gives VM 'web' the warp {warp_us!r}; use whole microseconds from 1 to 100000")
            for warp_us in (0, 100_001, 2.0, True, None)
        ),
        (shown("crunch"), "holds 'crunch' instead of the shown cause of 'shop'"),
        (
            shown(ShownCause("ghost", 0.5, 0.99, 1.0)),
            "names VM 'ghost' as the cause of 'shop', which is not a managed VM of this host",
        ),
        *(
            (
                shown(replace(SHOWN, **{field: value})),
                f"gives the cause of 'shop' the {field} {value!r}; use one from 0 to {most}",
            )
            for field, value, most in (
                ("fall", -0.1, "100"),
                ("fall", float("nan"), "100"),
                ("confidence", 1.01, "1"),
                ("confidence", None, "1"),
                ("age_s", True, "1e+09"),
            )
        ),
        (Decision(bandwidths=[]), "holds [] instead of bandwidth goals"),
        (bandwidths(("web", 0.5)), "names batch VM 'web', which is not a managed batch VM of this host"),
        (bandwidths(("crunch", 0.5), ("crunch", 0.1)), "limits the bandwidth of batch VM 'crunch' twice"),
        *(
            (
                bandwidths(("crunch", share)),
                f"gives VM 'crunch' the part {share!r} of the memory bandwidth; use one above 0, up to 1",
            )
            for share in (0, -0.1, 1.01, float("nan"), True, "1", None)
        ),
        (Decision(on_trial=1), "says 1 about a trial; use True or False"),  # type: ignore[arg-type]
        (Decision(ways={}), "holds {} instead of goals for ways"),
        (Decision(ways=("shop",)), "holds 'shop' instead of a goal for ways"),
        (ways(("web", 1)), "names application 'web', which is not a managed application of this host"),
        (ways(("shop", 1), ("shop", 2)), "gives application 'shop' two numbers of ways"),
        *(
            (ways(("shop", number)), f"gives application 'shop' {number!r} ways; use a whole number of at least 1")
            for number in (0, -1, 2.0, True, None)
        ),
    ],
)
def test_decisions_that_change_nothing(decision: Decision, objection: str) -> None:
    assert validate(decision, SHOP) == objection


@pytest.mark.parametrize(
    ("registered", "decided", "quota_us", "reason"),
    [
        (None, 0.5, 50_000, "why"),
        (1.0, 0.5, 50_000, "why"),
        (0.5, 0.5, 50_000, "registered limit: 0.5 pCPUs"),
        (0.5, 1.0, 50_000, "registered limit: 0.5 pCPUs"),
    ],
)
def test_the_smaller_of_the_registered_limit_and_the_policys(
    registered: float | None, decided: float, quota_us: int, reason: str
) -> None:
    one = view("web")
    limited = replace(one, spec=replace(one.spec, max_pcpus=registered))
    seen = snapshot(replace(limited, quota_period_us=100_000))
    [goal] = resolve(Wishes(quotas(("web", decided))), seen, {"web": "u-web"}).goals
    assert (goal.key, goal.value, goal.reason) == (KnobKey("u-web", Knob.QUOTA), quota_us, reason)
    assert resolve(Wishes(quotas(("web", decided))), snapshot(limited), {"web": "u-web"}).goals == (), "no such file"


def batch(name: str, vcpus: int = 1, max_pcpus: float | None = None, mode: Mode = Mode.ENFORCE) -> VmView:
    found = view(name, VmClass.BATCH, vcpus=vcpus, mode=mode)
    return replace(found, spec=replace(found.spec, max_pcpus=max_pcpus))


def floored(*vms: VmView, floor: float = 0.1) -> Snapshot:
    """Four pCPUs, of which batch VMs are to have a tenth, and with the margin 0.6 of a pCPU."""
    seen = snapshot(*vms, view("web"))
    return replace(seen, host=replace(seen.host, law=Law(batch_floor=floor)))


@pytest.mark.parametrize(
    ("vms", "decided", "kept"),
    [
        ([batch("a")], {"a": 0.1}, {"a": 0.6}),
        ([batch("a")], {"a": 0.7}, {"a": 0.7}),
        ([batch("a"), batch("b")], {"a": 0.1, "b": 0.1}, {"a": 0.3, "b": 0.3}),
        ([batch("a"), batch("b")], {"a": 0.5, "b": 0.01}, {"a": 0.5, "b": 0.1}),
        ([batch("a"), batch("b")], {"a": 0.1}, {"a": 0.1}),
        ([batch("a"), batch("b", max_pcpus=0.2)], {"a": 0.1}, {"a": 0.4}),
        ([batch("a", max_pcpus=0.1), batch("b")], {"a": 0.05, "b": 0.05}, {"a": 0.1, "b": 0.5}),
        ([batch("a", max_pcpus=0.1)], {"a": 0.05}, {"a": 0.1}),
        ([batch("a"), batch("b", mode=Mode.RELEASED)], {"a": 0.1, "b": 0.1}, {"a": 0.1, "b": 0.1}),
        ([batch("a")], {"a": 0.6, "web": 0.01}, {"a": 0.6, "web": 0.01}),
    ],
)
def test_quotas_leave_batch_vms_their_floor(
    vms: list[VmView], decided: dict[str, float], kept: dict[str, float]
) -> None:
    found, _ = guard_batch(quotas(*decided.items()), floored(*vms), BatchMemory())
    assert {goal.vm: goal.pcpus for goal in found.quotas} == pytest.approx(kept)
    raised = {goal.vm for goal in found.quotas if goal.reason.endswith("batch VMs keep their floor of 10.0 %")}
    assert raised == {vm for vm, pcpus in kept.items() if pcpus > decided[vm]}


@given(
    st.lists(
        st.tuples(st.floats(0.01, 4), st.integers(1, 4), st.none() | st.floats(0.01, 4), st.booleans()), max_size=6
    ),
    st.floats(0, 0.5),
)
def test_no_quotas_undercut_the_floor_and_none_is_lowered(
    drawn: list[tuple[float, int, float | None, bool]], floor: float
) -> None:
    vms = [batch(f"b{n}", vcpus, limit) for n, (_, vcpus, limit, _) in enumerate(drawn)]
    decided = {f"b{n}": pcpus for n, (pcpus, _, _, limited) in enumerate(drawn) if limited}
    found, _ = guard_batch(quotas(*decided.items()), floored(*vms, floor=floor), BatchMemory())
    kept = {goal.vm: goal.pcpus for goal in found.quotas}
    most = {vm.name: min(vm.vcpus, vm.spec.max_pcpus or vm.vcpus) for vm in vms}
    possible = min(floor * FLOOR_MARGIN * len(ONLINE), sum(most.values()))
    assert sum(min(kept.get(name, limit), limit) for name, limit in most.items()) >= possible - 1e-9
    assert all(kept[name] >= pcpus for name, pcpus in decided.items())
    if sum(min(decided.get(name, limit), limit) for name, limit in most.items()) >= possible:
        assert kept == decided


def test_the_agents_settings_bind_a_policy() -> None:
    decision = replace(quotas(("web", 0.05), ("batch", 0.2)), cpus=cpus(("web", ZERO)).cpus, pinning=True)
    assert limit_decision(decision, EVERYTHING) == (decision, ())
    left, told = limit_decision(decision, AgentLimits(min_pcpus=0.1))
    assert (left.quotas[0].pcpus, left.quotas[0].reason) == (0.1, "why; 0.05 pCPUs: min_pcpus = 0.1")
    assert (left.quotas[1:], left.cpus, told) == (decision.quotas[1:], decision.cpus, ())
    denied = AgentLimits(allowed=EVERYTHING.allowed - {Control.PIN, Control.QUOTA})
    assert limit_decision(decision, denied) == (
        Decision(),
        ("pins of the policy: deny has pin", "limits of the policy: deny has quota"),
    )
    assert limit_decision(Decision(pinning=False), denied) == (Decision(pinning=False), ())
