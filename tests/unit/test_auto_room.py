"""Room that batch VMs leave to critical VMs while an SLA is at risk: when, how much, and what it may cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.resolve import validate
from manager.model.decision import Snapshot
from manager.model.host import CPU_WEIGHT_V2
from manager.model.registration import HostSpec, Mode, Sharing, Sla, VmClass
from policies.auto import POLICY as AUTO
from policies.auto import AutoMemory
from policies.auto_room import MOST_LOST, Room, next_room, room_goals
from tests.unit.build import capabilities, view
from tests.unit.test_auto import application

AT_RISK = Room(risk_since_s=0.0)
"""An SLA is at risk for long, and there is no room yet."""


def seen(pcpus: int = 8, critical_pcpus: float = 3.4, batch_pcpus: float = 4.6, at_s: float = 1000.0) -> Snapshot:
    """A host with one critical and two batch VMs, which used so much in the last interval."""
    cpus = frozenset(range(pcpus))
    known = replace(capabilities(CPU_WEIGHT_V2), online_cpus=cpus, managed_cpus=cpus)
    critical = replace(view("shop-web", weight=10_000), cpu_share=critical_pcpus / pcpus, vcpus=pcpus)
    batch = [
        replace(view(name, VmClass.BATCH, weight=1), cpu_share=batch_pcpus / 2 / pcpus)
        for name in ("batch-1", "batch-2")
    ]
    spec = HostSpec("h1", policy="auto", pinning=False)
    return Snapshot(at_s, 5.0, spec, known, (critical, *batch))


@pytest.mark.parametrize(
    ("pcpus", "critical_pcpus", "left"), [(8, 3.4, 3), (8, 0.9, 0), (4, 4.0, 3), (2, 1.2, 1), (1, 1.0, 0)]
)
def test_as_many_pcpus_are_left_as_critical_vms_use(pcpus: int, critical_pcpus: float, left: int) -> None:
    moment = seen(pcpus, critical_pcpus, pcpus - critical_pcpus)
    room = next_room(AT_RISK, moment, at_risk=True)
    assert room.pcpus == left
    goals = list(room_goals(room, moment))
    assert [goal.vm for goal in goals] == (["batch-1", "batch-2"] if left else [])
    assert all(goal.cpus == frozenset(range(left, pcpus)) for goal in goals)
    assert next_room(room, moment, at_risk=True, may=False).pcpus == 0


@pytest.mark.parametrize(
    ("risks", "left"),
    [
        ([1, 0, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0]),  # by chance
        ([1, 1, 0, 0, 0], [0, 3, 3, 0, 0]),
        ([1, 1, 0, 1, 0, 1, 0, 0], [0, 3, 3, 3, 3, 3, 3, 0]),  # comes again soon
        ([1, 1, 0, 0, 1, 1], [0, 3, 3, 0, 0, 3]),
    ],
)
def test_room_neither_comes_nor_goes_with_each_interval(risks: list[int], left: list[int]) -> None:
    room, course = Room(), []
    for number, at_risk in enumerate(risks):
        room = next_room(room, seen(at_s=1000.0 + 5.0 * number), at_risk=bool(at_risk))
        course.append(room.pcpus)
    assert course == left


def test_an_sla_that_is_violated_waits_for_nothing() -> None:
    assert next_room(Room(), seen(), at_risk=True, violated=True).pcpus == 3
    assert next_room(Room(), seen(), at_risk=True).pcpus == 0


def test_room_only_begins_where_one_at_risk_waits_for_pcpus() -> None:
    assert next_room(AT_RISK, seen(), at_risk=True, violated=True, waits=False).pcpus == 0
    begun = next_room(AT_RISK, seen(), at_risk=True, waits=True)
    assert next_room(begun, seen(), at_risk=True, waits=False).pcpus == begun.pcpus == 3, "room shortens the wait"


def test_the_steps_of_room_are_times_and_not_ticks() -> None:
    room, course = Room(), []
    for second in range(30):
        room = next_room(room, seen(at_s=1000.0 + second), at_risk=second < 10)
        course.append(room.pcpus)
    assert course == [0] * 5 + [3] * 14 + [0] * 11


def test_a_batch_vm_that_may_only_use_what_is_left_stays_where_it_is() -> None:
    moment = seen()
    first, *others = (vm for vm in moment.vms if not vm.critical)
    bound = replace(first, spec=replace(first.spec, cpus=frozenset({0, 1})))
    moment = replace(moment, vms=(*(vm for vm in moment.vms if vm.critical), bound, *others))
    assert [goal.vm for goal in room_goals(Room(pcpus=3), moment)] == ["batch-2"]


def test_room_ends_once_batch_vms_lost_too_much_and_comes_back_at_half_of_it() -> None:
    room, course = AT_RISK, []
    for _ in range(200):
        batch_pcpus = 3.6 if room.pcpus else 4.6  # one pCPU of the three that are left is idle
        room = next_room(room, seen(batch_pcpus=batch_pcpus), at_risk=True)
        course.append(room)
    ended = next(number for number, each in enumerate(course) if not each.pcpus)
    assert course[ended - 1].lost <= MOST_LOST < course[ended].lost
    back = next(number for number, each in enumerate(course) if number > ended and each.pcpus)
    assert course[back].lost <= MOST_LOST / 2
    assert sum(each.lost for each in course) / len(course) <= MOST_LOST


@pytest.mark.parametrize("usable", [0, 1, 2])
def test_room_shrinks_with_the_pcpus_that_are_usable(usable: int) -> None:
    moment = seen()
    few = replace(moment.capabilities, managed_cpus=frozenset(range(usable)))
    room = next_room(Room(pcpus=3, used_pcpus=3.4), replace(moment, capabilities=few), at_risk=True)
    assert room.pcpus == max(usable - 1, 0)


def test_batch_vms_that_are_only_observed_lose_nothing() -> None:
    moment = seen(batch_pcpus=3.6)
    vms = tuple(replace(vm, mode=vm.mode if vm.critical else Mode.OBSERVE) for vm in moment.vms)
    assert next_room(Room(pcpus=3), moment, at_risk=True).lost > 0
    assert next_room(Room(pcpus=3), replace(moment, vms=vms), at_risk=True).lost == 0


def test_room_that_is_never_idle_costs_nothing() -> None:
    room = AT_RISK
    for _ in range(100):
        room = next_room(room, seen(), at_risk=True)
    assert room.pcpus == 3
    assert room.lost == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("times_ms", "batch_vms"), [([60, 70, 75], 0), ([60, 100, 190], 2)])
def test_auto_leaves_room_only_while_an_sla_is_at_risk(times_ms: list[int], batch_vms: int) -> None:
    moment = seen()
    critical, *batch = moment.vms
    busy, waits = (0.425,) * 8, (0.2,) * 8
    critical = replace(critical, application="shop", tier="web", vcpu_pcpus=busy, vcpu_waits=waits, run_delay_share=1.6)
    shop = application("shop", times_ms, 200.0, moment.now_s)
    moment = replace(moment, vms=(critical, *batch), applications=(shop,))
    long_ago = AutoMemory(room=AT_RISK)
    decision = AUTO.decide(moment, long_ago)
    assert len(decision.cpus) == batch_vms
    assert not AUTO.decide(moment, None).cpus, "not at the first sight of a risk"
    prompt = replace(moment, vms=(replace(critical, run_delay_share=0.3), *batch))
    assert not AUTO.decide(prompt, long_ago).cpus, "it does not wait for pCPUs"
    assert validate(decision, moment) is None
    above = replace(shop.application, sharing=Sharing.ISOLATION, sla=Sla(200.0, 95.0, 1.0))
    crowd = replace(shop, application=above)
    assert not AUTO.decide(replace(moment, applications=(crowd,)), long_ago).cpus, "above its agreed rate it pays alone"
    pinned = replace(moment, host=replace(moment.host, pinning=True))
    assert not AUTO.decide(pinned, long_ago).cpus
    holding = AutoMemory(room=Room(pcpus=3, used_pcpus=3.4, risk_s=moment.steady_s - 5.0))
    assert len(AUTO.decide(replace(moment, applications=(crowd,)), holding).cpus) == 2
    assert not AUTO.decide(replace(pinned, applications=(crowd,)), holding).cpus, "pinned: at once"


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.booleans()), min_size=1, max_size=30), st.integers(1, 16)
)
def test_batch_vms_always_keep_a_pcpu(ticks: list[tuple[float, float, bool]], pcpus: int) -> None:
    room = AT_RISK
    for critical, batch, at_risk in ticks:
        moment = seen(pcpus, critical * pcpus, (1 - critical) * batch * pcpus)
        room = next_room(room, moment, at_risk=at_risk)
        assert 0 <= room.pcpus < pcpus
        assert 0 <= room.lost <= 1
        assert all(goal.cpus and goal.cpus < frozenset(range(pcpus)) for goal in room_goals(room, moment))
