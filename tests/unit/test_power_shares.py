"""Energy between two readings, and whose it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.power_shares import MOST_DOMAIN_WATTS, energy_used, idle_watts, vm_watts
from manager.model.energy import EnergyCounter, EnergyPart, EnergyUse, HostPower
from manager.model.resource_use import HostCounters

RANGE_UJ = 262_000_000_000
SHARES = st.floats(0, 1)


def host(monotonic_s: float, *package_uj: int, dram_uj: int | None = None, range_uj: int = RANGE_UJ) -> HostCounters:
    energy = {str(number): EnergyCounter(EnergyPart.PACKAGE, uj, range_uj) for number, uj in enumerate(package_uj)}
    if dram_uj is not None:
        energy["0:0"] = EnergyCounter(EnergyPart.DRAM, dram_uj, range_uj)
    return HostCounters(monotonic_s, energy=energy)


@pytest.mark.parametrize(
    ("before", "now", "used"),
    [
        (host(0.0, 0), host(5.0, 500_000_000), (500.0, None, 5.0)),
        (host(0.0, 0, 7), host(5.0, 500_000_000, 100_000_007), (600.0, None, 5.0)),
        (host(0.0, 0, dram_uj=0), host(5.0, 0, dram_uj=20_000_000), (0.0, 20.0, 5.0)),
        (host(0.0, RANGE_UJ - 10), host(5.0, 10), (20e-6, None, 5.0)),
        (host(0.0), host(5.0), None),
        (host(0.0, 0), host(5.0, 0, 0), None),
        (host(0.0, 0, dram_uj=0), host(5.0, 0), None),
        (host(5.0, 0), host(5.0, 0), None),
        (host(0.0, RANGE_UJ // 2), host(5.0, 10), None),
        (host(0.0, 0), host(5.0, round(MOST_DOMAIN_WATTS * 5e6) + 1), None),
        (host(0.0, 0), host(RANGE_UJ / 1e6 / MOST_DOMAIN_WATTS + 1, 10), None),
    ],
    ids=[
        "one package",
        "two",
        "memory apart",
        "wraps",
        "nothing counted",
        "one comes",
        "one goes",
        "no time",
        "begins anew, which is no wrap",
        "too much",
        "may have wrapped twice",
    ],
)
def test_energy_between_two_readings(
    before: HostCounters, now: HostCounters, used: tuple[float, float | None, float] | None
) -> None:
    assert energy_used(now, before) == (None if used is None else pytest.approx(used))


def test_power_is_energy_by_time() -> None:
    power = EnergyUse(500.0, 100.0, 5.0).power
    assert (power, power.watts) == (HostPower(100.0, 20.0), 120.0)
    assert EnergyUse(500.0, None, 5.0).power.watts == 100.0


def test_the_idle_part_is_that_of_the_hosts_costs() -> None:
    assert idle_watts(150.0, 0.5, 0.0) == 150.0, "an idle host draws nothing else"
    assert idle_watts(300.0, 0.5, 1.0) == 150.0
    assert idle_watts(300.0, 0.0, 0.5) == 0.0
    assert idle_watts(300.0, 0.0, 0.0) == 0.0
    assert vm_watts(300.0, 0.5, 1.0, 0.4) == pytest.approx(60.0), "0.4 of the 150 W that are not idle"
    assert vm_watts(150.0, 0.5, 0.0, 0.0) == 0.0


@given(st.floats(0, 2000), SHARES, st.lists(SHARES, max_size=5), SHARES)
def test_vms_and_the_idle_part_never_have_more_than_there_is(
    watts: float, idle_part: float, shares: list[float], other: float
) -> None:
    total = sum(shares) + other
    scale = 1 / max(total, 1.0)
    shares, busy = [share * scale for share in shares], total * scale
    of_vms = [vm_watts(watts, idle_part, busy, share) for share in shares]
    assert all(each >= -1e-9 for each in of_vms)
    assert idle_watts(watts, idle_part, busy) + sum(of_vms) <= watts * (1 + 1e-9) + 1e-9
