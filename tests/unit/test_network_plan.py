"""How uplinks are divided between critical and batch VMs, round by round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.network_plan import (
    QUIET_S,
    RESERVED_PART,
    ROUND_S,
    STEP_PART,
    NetworkPlan,
    NetworkState,
    UplinksSeen,
    batch_ceiling_kbit,
    divisible,
    floor_kbit,
    plan_network,
    turn_frames,
)
from manager.control.resource_decision import ResourceDecision
from manager.model.decision import Snapshot, VmView
from manager.model.host import CPU_WEIGHT_V2
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.network import (
    BATCH_PART,
    CRITICAL_PART,
    MOST_KBIT,
    MOST_TURN,
    OTHERS_PART,
    USUAL_TURN,
    EgressGroup,
    UplinkPort,
)
from manager.model.registration import HostSpec, Mode, VmClass
from manager.model.rules import NetworkRules, UplinkRules
from tests.unit.build import capabilities, view

WEB, HOG = view("web"), view("hog", VmClass.BATCH)
ETH0 = UplinkPort("eth0", 1_000_000, physical=True, bridged=True)
RATE, CEILING = (KnobKey(HOST_UUID, knob, 2) for knob in (Knob.UPLINK_RATE, Knob.BATCH_EGRESS))
DIVIDED = 950_000
ON = NetworkRules(shares=True)


def group(vm: str, index: int = 2) -> KnobKey:
    return KnobKey(vm, Knob.EGRESS_GROUP, index)


class Host:
    """Interface 2 is an uplink, and every knob is there once it was divided."""

    def __init__(self, *views: VmView, rules: NetworkRules = ON, uplink: UplinkPort = ETH0) -> None:
        self.views, self.rules, self.uplinks = views, rules, {2: uplink}
        self.state = NetworkState()
        self.decided = ResourceDecision()
        self.now_s = 1000.0
        self.keys = frozenset({RATE, CEILING, *(group(vm.name) for vm in views)})
        self.turns: dict[KnobKey, int] = {}

    def round(self, critical_mbit: float = 0.0, journalled: Mapping[KnobKey, int] | None = None) -> NetworkPlan:
        self.now_s += ROUND_S
        sent = (self.uplinks[2].critical_bytes or 0) + int(critical_mbit * ROUND_S * 125_000)
        self.uplinks[2] = replace(self.uplinks[2], critical_bytes=sent)
        return self.tick(journalled)

    def tick(self, journalled: Mapping[KnobKey, int] | None = None) -> NetworkPlan:
        host = HostSpec("h1", network=self.rules)
        seen = Snapshot(1000.0, 5.0, host, capabilities(CPU_WEIGHT_V2, 2), self.views)
        uplinks = UplinksSeen(self.now_s, self.uplinks, self.keys, turns=self.turns)
        uuids = {vm.name: vm.name for vm in self.views}
        found = plan_network(seen, uuids, uplinks, self.state, journalled or {}, self.decided)
        self.state = found.state
        return found


def wanted(plan: NetworkPlan) -> dict[KnobKey, object]:
    return {goal.key: goal.value for goal in plan.goals}


def ceiling(plan: NetworkPlan) -> object:
    return wanted(plan)[CEILING]


def test_what_is_guaranteed_is_no_more_than_there_is() -> None:
    assert pytest.approx(1.0) == CRITICAL_PART + OTHERS_PART + BATCH_PART


def test_critical_and_batch_vms_get_their_parts() -> None:
    found = wanted(Host(WEB, HOG).round())
    assert found == {
        RATE: DIVIDED,
        CEILING: int(DIVIDED * (1 - RESERVED_PART)),
        group("web"): EgressGroup.CRITICAL,
        group("hog"): EgressGroup.BATCH,
    }


def test_a_policy_has_uplinks_divided_for_as_long_as_it_says_so() -> None:
    host = Host(WEB, HOG, rules=NetworkRules(steps=True))
    assert not host.round().goals
    host.decided = ResourceDecision(uplink_shares="told")
    plan = host.round()
    assert wanted(plan)[RATE] == DIVIDED
    assert plan.goals[0].reason == "told; critical VMs first, batch VMs what is left"
    host.decided = ResourceDecision()
    assert not host.round().goals


@pytest.mark.parametrize(
    ("uplink", "rules", "found"),
    [
        (ETH0, NetworkRules(), {"eth0"}),
        (replace(ETH0, other_qdisc="tbf 1:"), NetworkRules(), set()),
        (replace(ETH0, speed_kbit=None), NetworkRules(), set()),
        (replace(ETH0, speed_kbit=None), NetworkRules(uplinks=(UplinkRules("eth0", 100),)), {"eth0"}),
        (ETH0, NetworkRules(uplinks=(UplinkRules("eth1", 100),)), set()),
        (replace(ETH0, bridged=False), NetworkRules(), set()),
    ],
)
def test_which_interfaces_can_be_divided(uplink: UplinkPort, rules: NetworkRules, found: set[str]) -> None:
    assert divisible(rules, {2: uplink}) == found


def test_classes_come_once_the_uplink_is_divided() -> None:
    host = Host(WEB, HOG)
    host.keys = frozenset({RATE})
    assert wanted(host.round()) == {RATE: DIVIDED}


@pytest.mark.parametrize("views", [(HOG,), (HOG, replace(WEB, mode=Mode.RELEASED)), ()])
def test_nothing_is_divided_without_a_critical_vm(views: tuple[VmView, ...]) -> None:
    assert not Host(*views).round().goals


def test_an_uplink_stays_divided_while_the_critical_vm_restarts() -> None:
    host = Host(WEB, HOG)
    divided = wanted(host.round())
    host.views = (HOG,)
    del divided[group("web")]
    for _ in range(int(QUIET_S / ROUND_S) - 1):
        assert wanted(host.round()) == divided
    assert not host.round().goals
    assert wanted(Host(HOG).round(journalled={RATE: DIVIDED})) == divided, "a new agent has not seen it yet"


def test_nothing_is_wanted_by_default() -> None:
    assert not Host(WEB, HOG, rules=NetworkRules()).round().goals


@pytest.mark.parametrize(
    ("uplink", "rules", "rate", "problem"),
    [
        (ETH0, ON, 950_000, ""),
        (replace(ETH0, bridged=False), ON, None, ""),
        (replace(ETH0, physical=False), ON, None, ""),
        (replace(ETH0, physical=False), replace(ON, uplinks=(UplinkRules("eth0", 200),)), 200_000, ""),
        (replace(ETH0, bridged=False), replace(ON, uplinks=(UplinkRules("eth0"),)), 950_000, ""),
        (ETH0, replace(ON, uplinks=(UplinkRules("eth1"),)), None, "uplink eth1: no interface of that name"),
        (replace(ETH0, speed_kbit=None), ON, None, "its speed is not known"),
        (replace(ETH0, speed_kbit=400_000_000), ON, MOST_KBIT, ""),
        (replace(ETH0, other_qdisc="htb 1:"), ON, None, "another tool gave it the qdisc htb 1:"),
    ],
)
def test_which_interfaces_are_divided(uplink: UplinkPort, rules: NetworkRules, rate: int | None, problem: str) -> None:
    plan = Host(WEB, rules=rules, uplink=uplink).round()
    assert wanted(plan).get(RATE) == rate
    assert len(plan.problems) == bool(problem) and all(problem in told for told in plan.problems)


def test_an_uplink_whose_link_is_down_keeps_its_rate() -> None:
    host = Host(WEB)
    host.round()
    host.uplinks[2] = replace(host.uplinks[2], speed_kbit=None)
    assert wanted(host.round())[RATE] == DIVIDED
    again = Host(WEB, uplink=replace(ETH0, speed_kbit=None))
    assert wanted(again.round(journalled={RATE: 300_000}))[RATE] == 300_000


def test_a_qdisc_that_another_tool_put_over_ours_is_left_to_the_operator() -> None:
    host = Host(WEB, uplink=replace(ETH0, other_qdisc="tbf 1:"))
    plan = host.round(journalled={RATE: DIVIDED})
    assert RATE in wanted(plan) and plan.problems, "the difference shows that it was changed externally"


def test_the_ceiling_follows_what_critical_vms_send() -> None:
    host = Host(WEB, HOG)
    host.round()
    assert ceiling(host.round(100)) == DIVIDED - 100_000 - int(DIVIDED * RESERVED_PART)
    assert ceiling(host.round(700)) == DIVIDED - 700_000 - 70_000
    assert ceiling(host.round(940)) == floor_kbit(DIVIDED, 0.1)
    assert ceiling(host.round(0)) == DIVIDED - int(DIVIDED * RESERVED_PART)


def test_the_ceiling_stays_between_rounds_and_while_little_changes() -> None:
    host = Host(WEB, HOG)
    host.round()
    before = ceiling(host.round(100))
    assert ceiling(host.round(100 + STEP_PART * 950 * 0.9)) == before
    host.now_s += ROUND_S / 2
    host.uplinks[2] = replace(host.uplinks[2], critical_bytes=10**12)
    assert ceiling(host.tick()) == before, "half a round"
    host.uplinks = {}
    assert ceiling(host.tick()) == before, "nothing could be read"
    host.uplinks = {2: replace(ETH0, critical_bytes=0)}
    host.now_s += ROUND_S
    assert ceiling(host.tick()) == before, "the counter began anew"


def test_a_new_agent_keeps_the_ceiling_until_it_has_measured() -> None:
    host = Host(WEB, HOG)
    journalled = {RATE: DIVIDED, CEILING: 500_000}
    assert ceiling(host.round(100, journalled)) == 500_000
    assert ceiling(host.round(100, journalled)) == DIVIDED - 100_000 - int(DIVIDED * RESERVED_PART)


@pytest.mark.parametrize("mode", Mode)
def test_modes(mode: Mode) -> None:
    found = Host(replace(WEB, mode=mode), replace(HOG, mode=mode)).round()
    of_vms = {goal.mode for goal in found.goals if goal.key.uuid != HOST_UUID}
    assert of_vms == (set() if mode is Mode.RELEASED else {mode})


rates_kbit = st.integers(1000, MOST_KBIT)
floors = st.floats(BATCH_PART, 1.0)


@given(rate=rates_kbit, use=st.integers(0, 2 * MOST_KBIT), floor=floors)
def test_ceilings_are_within_their_range(rate: int, use: int, floor: float) -> None:
    least = floor_kbit(rate, floor)
    found = batch_ceiling_kbit(rate, use, least)
    assert least <= found <= rate
    assert found == least or found + use <= rate * (1 - RESERVED_PART) + 1
    assert int(rate * BATCH_PART) <= found, "never below what is guaranteed"
    assert batch_ceiling_kbit(rate, use + 1000, least) <= found


@given(st.lists(st.tuples(st.floats(0, 2000), st.floats(BATCH_PART, 1.0), st.integers(1, 34_000)), max_size=8))
def test_whatever_happens_goals_are_within_range_and_idempotent(rounds: list[tuple[float, float, int]]) -> None:
    host = Host(WEB, HOG)
    for use, floor, rate_mbit in rounds:
        host.rules = NetworkRules(shares=True, uplinks=(UplinkRules("eth0", rate_mbit),), batch_floor=floor)
        found = wanted(host.round(use))
        rate, held = found[RATE], found[CEILING]
        assert isinstance(rate, int) and isinstance(held, int) and rate == rate_mbit * 1000
        assert floor_kbit(rate, floor) <= held <= rate
        assert all(not key.knob.spec.value.objection(value) for key, value in found.items())  # type: ignore[arg-type]
        assert wanted(host.tick()) == found


def turn(vm: str, index: int = 2) -> KnobKey:
    return KnobKey(vm, Knob.EGRESS_TURN, index)


def weighed(vm: VmView, weight: int | None) -> VmView:
    return replace(vm, spec=replace(vm.spec, weight=weight))


def turns(plan: NetworkPlan) -> dict[str, object]:
    return {key.uuid: value for key, value in wanted(plan).items() if key.knob is Knob.EGRESS_TURN}


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        ({"hog": None, "pig": None}, {}),
        ({"hog": 100, "pig": 300}, {"hog": 46, "pig": 138}),
        ({"hog": 100, "pig": 100}, {"hog": 46, "pig": 46}),
        ({"hog": None, "pig": 10}, {"hog": 46, "pig": 460}),  # one without a weight has the least there is
        ({"hog": 1, "pig": 10_000}, {"hog": 46, "pig": MOST_TURN}),
        ({"hog": 1000, "pig": 10_000, "cow": 2000}, {"hog": 46, "pig": 460, "cow": 92}),
    ],
)
def test_vms_of_a_kind_share_by_their_weights(weights: dict[str, int | None], found: dict[str, int]) -> None:
    batch = [weighed(view(name, VmClass.BATCH), weight) for name, weight in weights.items()]
    host = Host(WEB, *batch)
    host.turns = {turn(vm.name): USUAL_TURN for vm in host.views}
    assert turns(host.round()) == found


def test_turns_go_back_to_the_usual_once_no_vm_of_the_kind_has_a_weight() -> None:
    host = Host(WEB, weighed(HOG, 300), view("pig", VmClass.BATCH))
    host.turns = {turn(vm.name): USUAL_TURN for vm in host.views}
    had = turns(host.round())
    assert had["hog"] == MOST_TURN
    host.views = (WEB, HOG, view("pig", VmClass.BATCH))
    host.turns |= {turn("hog"): MOST_TURN, turn("pig"): 1}
    assert turns(host.round()) == {"hog": USUAL_TURN, "pig": USUAL_TURN}


def test_a_turn_is_wanted_where_there_is_a_class_alone() -> None:
    assert turns(Host(WEB, weighed(HOG, 300), view("pig", VmClass.BATCH)).round()) == {}


@given(st.lists(st.integers(1, 262_144), min_size=1, max_size=6))
def test_turns_are_in_range_in_order_and_as_the_weights(weights: list[int]) -> None:
    least, most = min(weights), max(weights)
    frames = [turn_frames(weight, least, most) for weight in sorted(weights)]
    assert frames[0] == USUAL_TURN
    assert frames == sorted(frames) and frames[-1] <= MOST_TURN
    for weight, share in zip(sorted(weights), frames, strict=True):
        assert share == pytest.approx(max(frames[-1] * weight / most, USUAL_TURN), abs=1)


def test_no_turn_is_shorter_than_the_longest_packet() -> None:
    headers, segmented, frame = 14 + 20 + 20, 64 * 1024, 1514
    payload = frame - headers
    on_the_wire = segmented + headers * -(-segmented // payload)
    assert USUAL_TURN * frame >= on_the_wire
