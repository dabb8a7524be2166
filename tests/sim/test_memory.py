"""The model of caches and memory: what it says of cases that can be reckoned by hand, and what holds of all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.cache import DEFAULT, BandwidthUnit, Slot
from manager.sim.memory_bus import SimMemory, Taker, shares, traffic
from manager.sim.scenario import BatchSpec, CacheSpec, Constant, MemoryUse, MissCurve, Shape
from manager.sim.world import World
from tests.sim.build import app, scenario

MIB = float(1 << 20)
USE = MemoryUse(8 * MIB, 2.0, 4.0)
SPEC = CacheSpec(16, MIB, 40.0)


def test_miss_curves() -> None:
    sizes = [0.0, 4 * MIB, 8 * MIB, 16 * MIB]
    assert [USE.misses(size) for size in sizes] == pytest.approx([1, 0.22313, 0.04979, 0.00248], abs=1e-5)
    assert [replace(USE, curve=MissCurve.LINEAR).misses(size) for size in sizes] == [1, 0.5, 0, 0]
    assert [replace(USE, curve=MissCurve.CLIFF).misses(size) for size in sizes] == [1, 1, 0, 0]


def test_ways_that_several_may_fill_are_shared_by_pressure() -> None:
    large = replace(USE, working_set_bytes=1024 * MIB)
    assert shares([Taker(large, 1.0, 0xFF), Taker(large, 3.0, 0xFF)], MIB) == pytest.approx([2 * MIB, 6 * MIB])
    assert shares([Taker(large, 1.0, 0x0F), Taker(large, 3.0, 0xFF)], MIB) == pytest.approx([1 * MIB, 7 * MIB])
    assert shares([Taker(large, 1.0, 0x0F), Taker(large, 9.0, 0xF0)], MIB) == pytest.approx([4 * MIB, 4 * MIB])


def test_nobody_has_more_than_its_working_set_and_others_have_the_rest() -> None:
    large = replace(USE, working_set_bytes=1024 * MIB)
    assert shares([Taker(USE, 9.0, 0xFFFF), Taker(large, 1.0, 0xFFFF)], MIB) == pytest.approx([8 * MIB] * 2, rel=1e-3)
    assert shares([Taker(USE, 0.0, 0xFFFF)], MIB) == [8 * MIB], "one that does nothing loses nothing to nobody"


def test_the_bus_makes_those_slower_that_miss_as_in_an_m_d_1_queue() -> None:
    takers = [Taker(USE, 2.0, 1), Taker(USE, 4.0, 1)]
    found = traffic(takers, [1.0, 0.5], 20.0, {})
    used = sum(gbps for _, gbps in found) / 20.0
    assert 0.2 < used < 1
    wait = 1 + used / (2 * (1 - used))
    assert [slow for slow, _ in found] == pytest.approx([1 + 2 * wait, 1 + wait], rel=1e-6)
    assert [gbps for _, gbps in found] == pytest.approx([2 * 4 / (1 + 2 * wait), 4 * 4 * 0.5 / (1 + wait)], rel=1e-6)


def test_a_limit_holds_a_group_together_and_helps_the_others() -> None:
    takers = [Taker(USE, 4.0, 1, "held"), Taker(USE, 4.0, 1, "held"), Taker(USE, 1.0, 1)]
    free, limited = (traffic(takers, [1.0] * 3, 12.0, limits) for limits in ({}, {"held": 3.0}))
    assert limited[0][1] + limited[1][1] == pytest.approx(3.0)
    assert limited[0][0] > 2 * free[0][0]
    assert limited[2][0] < free[2][0]
    assert limited[2][1] > free[2][1]


TAKERS = st.lists(
    st.builds(
        Taker,
        st.builds(
            MemoryUse, st.floats(1e4, 1e9), st.floats(0.01, 20), st.floats(0.001, 50), st.sampled_from(list(MissCurve))
        ),
        st.floats(0, 8),
        st.integers(1, 2**12 - 1),
        st.sampled_from(["", "a", "b"]),
    ),
    min_size=1,
    max_size=6,
)


@given(TAKERS, st.floats(0.1, 500), st.dictionaries(st.sampled_from("ab"), st.floats(0.05, 100)))
def test_whatever_runs_there_is_no_more_cache_and_bandwidth_than_there_is(
    takers: list[Taker], bandwidth_gbps: float, limits: dict[str, float]
) -> None:
    held = shares(takers, MIB)
    assert sum(held) <= 12 * MIB * (1 + 1e-9)
    for one, has in zip(takers, held, strict=True):
        assert 0 <= has <= min(one.ways.bit_count() * MIB, one.use.working_set_bytes) * (1 + 1e-9)
    misses = [one.use.misses(has) for one, has in zip(takers, held, strict=True)]
    found = traffic(takers, misses, bandwidth_gbps, limits)
    assert all(slow >= 1 for slow, _ in found)
    assert sum(gbps for _, gbps in found) <= bandwidth_gbps * (1 + 1e-6)
    for group, most in limits.items():
        assert sum(gbps for one, (_, gbps) in zip(takers, found, strict=True) if one.group == group) <= most * (
            1 + 1e-9
        )


@pytest.mark.parametrize(
    ("unit", "value", "gbps"),
    [(BandwidthUnit.PERCENT, 10, 4.0), (BandwidthUnit.EIGHTH_GBPS, 16, 2.0), (BandwidthUnit.MBPS, 2000, 2.097152)],
)
def test_limits_are_in_the_hosts_unit(unit: BandwidthUnit, value: int, gbps: float) -> None:
    hog = BatchSpec("hog", vcpus=4, memory=MemoryUse(1e12, 0.1, 20.0))
    world = World(scenario(pcpus=4, batch=(hog,), cache=replace(SPEC, mba=unit)))
    memory = world.memory
    assert memory is not None
    world.run_until(20.0)
    before = memory.counters[DEFAULT].moved[0]
    world.run_until(30.0)
    assert memory.counters[DEFAULT].moved[0] - before > 300e9
    memory.values[DEFAULT][Slot("MB", 0)] = value
    world.run_until(31.0)
    before = memory.counters[DEFAULT].moved[0]
    world.run_until(41.0)
    assert memory.counters[DEFAULT].moved[0] - before == pytest.approx(gbps * 10e9, rel=1e-6)


def test_requests_take_longer_for_what_their_vm_lacks() -> None:
    """Alone on the host, with all its ways and with one: 1 + 2 m."""
    base = app("shop", Constant(20.0), mean_ms=10.0, shape=Shape.DETERMINISTIC)
    times_s = []
    for ways in (0xFFFF, 0x1):
        tier = replace(base.tiers[0], memory=replace(USE, traffic_gbps=0.001))
        world = World(scenario(replace(base, tiers=(tier,)), cache=SPEC))
        assert world.memory is not None
        world.memory.values[DEFAULT][Slot("L3", 0)] = ways
        world.run_until(5.0)
        before_s = world.vm_cpu_s(world.vms["shop-web"])
        world.close_slot()
        world.run_until(65.0)
        slot = world.close_slot()["shop"]
        times_s.append((world.vm_cpu_s(world.vms["shop-web"]) - before_s) / slot.answered)
    misses = [USE.misses(8 * MIB), USE.misses(1 * MIB)]
    assert times_s == pytest.approx([0.01 * (1 + 2 * miss) for miss in misses], rel=0.02)


def test_pcpus_are_divided_among_domains_in_order() -> None:
    memory = SimMemory(replace(SPEC, domains=2), 4)
    assert memory.domain_of == [0, 0, 1, 1]
    assert memory.settings() == {DEFAULT: (16, 100)}
