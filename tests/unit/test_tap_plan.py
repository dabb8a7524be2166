"""Limits of what batch VMs send at their taps: which taps have one, for how long, and what stays another tool's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.control.network_plan import QUIET_S, NetworkPlan, NetworkState, UplinksSeen, plan_network
from manager.control.tap_plan import plan_taps
from manager.model.decision import Snapshot, VmView
from manager.model.host import CPU_WEIGHT_V2
from manager.model.knobs import Knob, KnobKey
from manager.model.network import ANOTHER, NO_RATE
from manager.model.registration import HostSpec, Mode, VmClass
from manager.model.rules import NetworkRules
from tests.unit.build import capabilities, view

WEB, HOG = view("web"), view("hog", VmClass.BATCH)
UUIDS = {"web": "u-web", "hog": "u-hog"}
TAPS = {"web": 5, "hog": 6}
LIMITED = NetworkRules(batch_tap_mbit=100)


def tap(name: str, index: int | None = None) -> KnobKey:
    return KnobKey(UUIDS[name], Knob.TAP_LIMIT, index or TAPS[name])


FREE = {tap("web"): NO_RATE, tap("hog"): NO_RATE, tap("hog", 7): NO_RATE}


def planned(
    *views: VmView, rules: NetworkRules = LIMITED, state: NetworkState | None = None, at_s: float = 1000.0
) -> NetworkPlan:
    snapshot = Snapshot(at_s, 5.0, HostSpec("h1", network=rules), capabilities(CPU_WEIGHT_V2, 2), views)
    seen = UplinksSeen(at_s, limits=FREE)
    return plan_network(snapshot, UUIDS, seen, state or NetworkState())


def test_all_taps_of_batch_vms_have_the_limit_beside_a_critical_vm() -> None:
    plan = planned(WEB, HOG)
    assert {goal.key: goal.value for goal in plan.goals} == {tap("hog"): 100_000, tap("hog", 7): 100_000}
    assert plan.problems == ()


@pytest.mark.parametrize(
    ("views", "rules"),
    [((WEB, HOG), NetworkRules()), ((HOG,), LIMITED), ((replace(WEB, mode=Mode.RELEASED), HOG), LIMITED)],
)
def test_there_is_none_without_the_setting_or_a_critical_vm(views: tuple[VmView, ...], rules: NetworkRules) -> None:
    assert planned(*views, rules=rules).goals == ()


def test_it_stays_for_a_minute_after_the_last_critical_vm() -> None:
    state = planned(WEB, HOG).state
    for later_s, goals in ((QUIET_S - 1, 2), (QUIET_S, 0)):
        assert len(planned(HOG, state=state, at_s=1000.0 + later_s).goals) == goals


def test_shares_have_their_goals_beside_it() -> None:
    assert planned(WEB, HOG, rules=replace(LIMITED, shares=True)).goals == planned(WEB, HOG).goals, "no uplink is known"


def test_what_another_tool_has_set_stays_and_is_told() -> None:
    limits = {**FREE, tap("hog"): ANOTHER}
    plan = plan_taps((WEB, HOG), UUIDS, 100, limits, {})
    assert [goal.key for goal in plan.goals] == [tap("hog", 7)]
    assert plan.problems == (
        "VM hog is not limited to 100 Mbit/s: another tool, such as libvirt for <bandwidth>, "
        "has set what its tap takes, which stays",
    )
    adoptable = plan_taps((WEB, HOG), UUIDS, 100, limits, {tap("hog"): 100_000})
    assert len(adoptable.goals) == 2 and adoptable.problems == (), "it was changed externally"
