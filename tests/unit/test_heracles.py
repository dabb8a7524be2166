"""`heracles`: when batch VMs are off, on, grow and shrink; and what always holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.control.resolve import validate
from manager.model.decision import ApplicationView, Decision, Snapshot
from manager.model.histogram import Histogram
from manager.model.host import CPU_WEIGHT_V2
from manager.model.law import Law
from manager.model.registration import Application, HostSpec, Sla, Tier, VmClass
from manager.model.window import SlaState, Window
from policies.heracles import COOL_DOWN_S, POLICY, HeraclesMemory, Load, fence, grow, top, top_as_printed
from tests.unit.build import capabilities, view

ON = HeraclesMemory(cores=5, growth=True, slack=0.5)
OFF = HeraclesMemory(cores=5, on=False)


@pytest.mark.parametrize(
    ("before", "slack", "load", "on", "growth", "cores"),
    [
        (ON, 0.5, 0.5, True, True, 5),
        (ON, -0.01, 0.5, False, False, 5),  # violated
        (ON, 0.5, 0.86, False, False, 5),  # high load
        (ON, 0.5, 0.82, True, True, 5),  # between the two it stays as it is
        (OFF, 0.5, 0.82, False, True, 5),
        (OFF, 0.5, 0.79, True, True, 1),  # on again, with one pCPU
        (ON, 0.09, 0.5, True, False, 5),
        (ON, 0.04, 0.5, True, False, 2),
        (ON, 0.04, 0.82, True, False, 2),
        (HeraclesMemory(cores=1), 0.04, 0.5, True, False, 1),
        (ON, None, 0.5, True, False, 5),  # without data there is no growth
        (ON, None, None, True, False, 5),
        (ON, None, 0.9, False, False, 5),
    ],
)
def test_the_top_controller(before: HeraclesMemory, slack, load, on: bool, growth: bool, cores: int) -> None:
    after = top(before, Load(slack, load), 100.0)
    assert (after.on, after.growth, after.cores) == (on, growth, cores)


@pytest.mark.parametrize(
    ("before", "slack", "load", "on", "growth", "cores"),
    [
        (ON, -0.01, 0.5, False, False, 5),
        (ON, 0.5, 0.86, False, False, 5),
        (ON, 0.04, 0.5, True, True, 5),  # below the low load slack limits nothing
        (ON, 0.09, 0.82, True, False, 5),
        (ON, 0.04, 0.82, True, False, 2),
        (replace(ON, growth=False), 0.5, 0.82, True, False, 5),  # and what it limited stays so
        (OFF, 0.5, 0.5, True, True, 1),
        (ON, None, 0.82, True, True, 5),
    ],
)
def test_the_top_controller_as_printed(before: HeraclesMemory, slack, load, on: bool, growth: bool, cores: int) -> None:
    after = top_as_printed(before, Load(slack, load), 100.0)
    assert (after.on, after.growth, after.cores) == (on, growth, cores)


@pytest.mark.parametrize("controller", [top, top_as_printed])
def test_after_a_violation_batch_vms_stay_off_for_five_minutes(controller) -> None:
    good = Load(0.5, 0.5)
    off = controller(ON, Load(-0.2, 0.5), 100.0)
    assert off.reason == "off for 300 s: slack -20 %"
    assert not controller(off, good, 100.0 + COOL_DOWN_S - 1).on
    again = controller(off, good, 100.0 + COOL_DOWN_S)
    assert (again.on, again.cores, again.cool_until_s) == (True, 1, None)
    longer = controller(off, Load(-0.2, 0.5), 250.0)
    assert not controller(longer, good, 100.0 + COOL_DOWN_S).on


@pytest.mark.parametrize("controller", [top, top_as_printed])
def test_batch_vms_that_are_off_are_not_said_to_keep_pcpus(controller) -> None:
    off = controller(ON, Load(-0.2, 0.5), 100.0)
    later = controller(off, Load(0.04, 0.82), 115.0)
    assert (later.on, later.reason) == (False, off.reason)


@pytest.mark.parametrize("controller", [top, top_as_printed])
def test_after_a_high_load_they_are_on_as_soon_as_it_is_low(controller) -> None:
    off = controller(ON, Load(0.5, 0.9), 100.0)
    assert controller(off, Load(0.5, 0.79), 115.0).on


@pytest.mark.parametrize(
    ("kept", "slack", "most", "cores"),
    [
        (ON, 0.5, 7, 6),
        (ON, 0.5, 5, 5),  # critical VMs keep one
        (ON, 0.1, 7, 5),
        (ON, None, 7, 5),
        (replace(ON, growth=False), 0.5, 7, 5),
        (replace(ON, on=False), 0.5, 7, 5),
    ],
)
def test_growth(kept: HeraclesMemory, slack: float | None, most: int, cores: int) -> None:
    assert grow(kept, slack, most).cores == cores


@pytest.mark.parametrize(("published", "cores"), [(False, 2), (True, 3)])
def test_growth_looks_at_the_newest_response_times_unless_as_printed(published: bool, cores: int) -> None:
    memory = POLICY.decide(moment(1000.0, published=published), None).memory
    assert isinstance(memory, HeraclesMemory)
    assert memory.cores == 2
    later = POLICY.decide(moment(1002.0, 120.0, published=published), memory).memory
    assert isinstance(later, HeraclesMemory)
    assert (later.cores, later.on) == (cores, True)


def moment(
    now_s: float,
    time_ms: float | None = 50.0,
    rate_rps: float = 50.0,
    *,
    max_rate_rps: float | None = 100.0,
    pcpus: int = 4,
    batch: int = 2,
    published: bool = False,
) -> Snapshot:
    """An application whose last fifteen seconds were all alike."""
    names = [f"z-{number}" for number in range(batch)]
    web = replace(view("web"), application="shop", tier="web")
    vms = (web, *(replace(view(name, VmClass.BATCH), quota_period_us=100_000) for name in names))
    spec = Application("shop", (Tier("web", ("web",)),), Sla(100.0, max_rate_rps=max_rate_rps))
    histogram = Histogram() if time_ms is None else Histogram.of([time_ms * 1000] * 60)
    slot = Window("shop", now_s - 15, now_s, histogram, rate_rps * 15)
    shop = ApplicationView(spec, slot, SlaState.MET, (slot,))
    cpus = frozenset(range(pcpus))
    host = replace(capabilities(CPU_WEIGHT_V2, 2), online_cpus=cpus, managed_cpus=cpus)
    return Snapshot(now_s, 1.0, HostSpec("h1", law=Law(published=published)), host, vms, (shop,))


def where(decision: Decision) -> dict[str, frozenset[int]]:
    return {goal.vm: goal.cpus for goal in decision.cpus}


def test_batch_grows_every_two_seconds_from_one_pcpu_on_and_critical_vms_keep_one() -> None:
    memory: object = None
    sizes = []
    for second in range(8):
        decision = POLICY.decide(moment(1000.0 + second), memory)
        memory = decision.memory
        sets = where(decision)
        assert sets["web"].isdisjoint(sets["z-0"])
        assert sets["z-0"] == sets["z-1"]
        sizes.append(len(sets["z-0"]))
    assert sizes == [2, 2, 3, 3, 3, 3, 3, 3]
    assert decision.pinning is False
    assert decision.quotas == ()
    assert {goal.vm: goal.weight for goal in decision.weights} == {"web": 10_000, "z-0": 1, "z-1": 1}


def test_a_violation_is_seen_every_fifteen_seconds_and_puts_batch_off() -> None:
    memory = POLICY.decide(moment(1000.0), None).memory
    early = POLICY.decide(moment(1014.0, 120.0), memory)
    assert early.quotas == ()
    off = POLICY.decide(moment(1015.0, 120.0), memory)
    assert set(where(off).values()) == {frozenset(range(4))}
    # 1.5 times the floor of 1 % of four pCPUs, for two VMs.
    assert [(goal.vm, goal.pcpus) for goal in off.quotas] == [
        ("z-0", pytest.approx(0.03)),
        ("z-1", pytest.approx(0.03)),
    ]
    assert off.quotas[0].reason.startswith("heracles: batch off for 300 s: slack -19 %")


@pytest.mark.parametrize(("rate_rps", "max_rate_rps", "on"), [(84.0, 100.0, True), (86.0, 100.0, False)])
def test_load_is_of_the_agreed_rate(rate_rps: float, max_rate_rps: float, on: bool) -> None:
    kept = POLICY.decide(moment(1000.0, rate_rps=rate_rps, max_rate_rps=max_rate_rps), None).memory
    assert isinstance(kept, HeraclesMemory)
    assert kept.on is on


def test_without_an_agreed_rate_it_is_of_the_largest_seen() -> None:
    high = POLICY.decide(moment(1000.0, rate_rps=50.0, max_rate_rps=None), None).memory
    low = POLICY.decide(moment(1015.0, rate_rps=30.0, max_rate_rps=None), high).memory
    assert isinstance(high, HeraclesMemory)
    assert isinstance(low, HeraclesMemory)
    assert (high.on, low.on, low.peaks_rps) == (False, True, {"shop": 50.0})


def test_published_takes_the_chain_as_printed() -> None:
    for published, growth in ((False, False), (True, True)):
        kept = POLICY.decide(moment(1000.0, 92.0, published=published), None).memory
        assert isinstance(kept, HeraclesMemory)
        assert kept.growth is growth


@pytest.mark.parametrize(
    ("order", "critical", "batch", "expected"),
    [
        ((0, 1, 2, 3), True, True, ({0, 1, 2}, {3})),
        ((0, 1, 2, 3), True, False, ({0, 1, 2, 3}, {0, 1, 2, 3})),
        ((0, 1, 2, 3), False, True, ({0, 1, 2, 3}, {0, 1, 2, 3})),
        ((0,), True, True, ({0}, {0})),
    ],
)
def test_the_fence(order, critical: bool, batch: bool, expected) -> None:
    made = fence(order, HeraclesMemory(), critical=critical, batch=batch)
    assert (made.critical, made.batch) == expected


def test_without_an_sla_batch_keeps_its_first_pcpu() -> None:
    now = moment(1000.0)
    [shop] = now.applications
    now = replace(now, applications=(replace(shop, application=replace(shop.application, sla=None)),))
    kept = POLICY.decide(now, None).memory
    assert isinstance(kept, HeraclesMemory)
    assert (kept.on, kept.growth, kept.cores) == (True, False, 1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([None, 50.0, 92.0, 97.0, 120.0]), st.sampled_from([0.0, 50.0, 83.0, 99.0]))),
    st.integers(1, 8),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([0.5, 2.0, 15.0]),
)
def test_what_always_holds(course, pcpus: int, batch: int, published: bool, every_s: float) -> None:
    """Everyone is somewhere that is usable; batch VMs are apart unless off or alone; equal in, equal out."""
    memory: object = None
    for number, (time_ms, rate_rps) in enumerate(course):
        now = moment(1000.0 + number * every_s, time_ms, rate_rps, pcpus=pcpus, batch=batch, published=published)
        decision = POLICY.decide(now, memory)
        assert decision == POLICY.decide(now, memory)
        assert validate(decision, now) is None
        sets = where(decision)
        assert sets.keys() == {vm.name for vm in now.vms}
        assert all(cpus and cpus <= frozenset(range(pcpus)) for cpus in sets.values())
        memory = decision.memory
        assert isinstance(memory, HeraclesMemory)
        if batch:
            assert sets["web"].isdisjoint(sets["z-0"]) is (memory.on and pcpus > 1)
            assert bool(decision.quotas) is not memory.on
