"""The cost model against the study's own table, and what cannot be otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.savings import (
    CostedUse,
    CostModel,
    EnergySource,
    HostUse,
    Savings,
    model_of,
    saved_by,
    use_of_history,
)
from manager.model.costs import HostCosts

MODEL = CostModel()
SHARES = st.floats(0, 1)


def shared(critical: float, batch: float, other: float = 0.0, hours: float = 24.0, host: str = "kvm7") -> HostUse:
    return HostUse(host, critical, batch, other, hours)


def saved(*uses: HostUse) -> Savings | None:
    return saved_by([CostedUse(use, MODEL) for use in uses])


def test_a_server_costs_what_the_study_says() -> None:
    assert MODEL.burden == pytest.approx(3.33)
    assert MODEL.tco_usd(1.0) == pytest.approx(2000 + 3.33 * 0.08 * 0.3 * 26_280)
    assert MODEL.power_kw(0.0) == 0.15


@pytest.mark.parametrize(
    ("load", "batch", "gain"),
    [(0.1, 0.754, 0.52), (0.3, 0.47, 0.29), (0.5, 0.30, 0.18), (0.7, 0.18, 0.11), (0.9, 0.20, 0.18)],
)
def test_the_gains_of_table_2(load: float, batch: float, gain: float) -> None:
    """Memcached's load, SPEC's throughput beside it, and the geometric mean of what they print. The host is full."""
    apart = MODEL.tco_usd(load) + batch * MODEL.tco_usd(1.0)
    assert apart / MODEL.tco_usd(1.0) - 1 == pytest.approx(gain, abs=0.01)


def test_a_host_that_is_filled() -> None:
    found = saved(shared(0.1, 0.9))
    assert found is not None
    assert (found.servers, found.saved_servers, found.utilisation) == (1, 0.9, 1.0)
    assert found.gain == pytest.approx((MODEL.tco_usd(0.1) + 0.9 * MODEL.tco_usd(1)) / MODEL.tco_usd(1) - 1)
    assert found.energy_kwh == pytest.approx(0.3 * 24)
    assert found.batch_kwh == pytest.approx(0.3 * 0.45 * 24)
    assert found.saved_kwh == pytest.approx((0.165 + 0.9 * 0.3 - 0.3) * 24)


def test_hosts_that_were_not_measured_do_not_count() -> None:
    assert saved() is None
    assert saved(shared(0.1, 0.9, hours=0.0)) is None
    found = saved(shared(0.1, 0.9, hours=0.0), shared(0.2, 0.5))
    assert found == saved(shared(0.2, 0.5))


@given(SHARES, SHARES, SHARES, st.floats(0.1, 1000))
def test_sharing_never_costs_more(critical: float, batch: float, other: float, hours: float) -> None:
    critical, batch = critical * 0.5, batch * 0.3
    found = saved(shared(critical, batch, other * 0.2, hours))
    assert found is not None
    assert found.gain >= -1e-9
    assert found.apart_usd_per_year >= found.together_usd_per_year - 1e-6
    assert found.saved_kwh >= -1e-6
    assert 0 <= found.batch_kwh <= found.energy_kwh


COSTS = st.builds(HostCosts, server_usd=st.floats(0, 1e5), years=st.floats(1, 10), peak_watts=st.floats(50, 2000))


@given(st.lists(st.tuples(SHARES, SHARES, COSTS), min_size=1, max_size=10))
def test_a_fleet_is_the_sum_of_its_hosts_each_by_its_own_costs(shares: list[tuple[float, float, HostCosts]]) -> None:
    hosts = [
        CostedUse(shared(critical / 2, batch / 2, host=f"kvm{place}"), model_of(costs))
        for place, (critical, batch, costs) in enumerate(shares)
    ]
    fleet, each = saved_by(hosts), [one for host in hosts if (one := saved_by([host])) is not None]
    assert fleet is not None
    for name in ("together_usd_per_year", "apart_usd_per_year", "energy_kwh", "batch_kwh", "saved_kwh"):
        assert getattr(fleet, name) == pytest.approx(sum(getattr(one, name) for one in each), abs=1e-6), name
    assert fleet.gain == pytest.approx(fleet.apart_usd_per_year / fleet.together_usd_per_year - 1)


def test_hosts_that_serve_for_different_times_are_compared_by_the_year() -> None:
    """Of two alike, one serves twice as long: what it costs a year is half its price, and its power."""
    hosts = [CostedUse(shared(0.5, 0.0), CostModel(usd_per_kwh=0.0, years=years)) for years in (2.0, 4.0)]
    found = saved_by(hosts)
    assert found is not None
    assert found.together_usd_per_year == pytest.approx(2000 / 2 + 2000 / 4)
    assert found.gain == pytest.approx(0)


def test_a_host_that_costs_nothing_gains_nothing() -> None:
    found = saved_by([CostedUse(shared(0.1, 0.9), CostModel(server_usd=0.0, usd_per_kwh=0.0))])
    assert found is not None
    assert (found.gain, found.together_usd_per_year) == (0.0, 0.0)


def test_the_costs_of_a_host_that_nobody_set_are_those_of_the_study() -> None:
    assert model_of(HostCosts()) == MODEL
    costs = HostCosts(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    assert model_of(costs) == CostModel(1.0, 2.0, 3.0, 0.004, 0.05, 6.0, 7.0, 8.0)


def measured(rapl_kwh: float, rapl_hours: float = 24.0, critical: float = 0.1, batch: float = 0.9) -> HostUse:
    return replace(shared(critical, batch), rapl_kwh=rapl_kwh, rapl_hours=rapl_hours)


def test_measured_energy_takes_the_place_of_the_models_and_the_rest_follows_in_proportion() -> None:
    model, rapl = saved(shared(0.1, 0.9)), saved(measured(3.6))
    assert model is not None
    assert rapl is not None
    assert (model.energy_source, rapl.energy_source) == (EnergySource.MODEL, EnergySource.RAPL)
    assert (model.energy_kwh, rapl.energy_kwh) == pytest.approx((7.2, 3.6))
    assert (rapl.batch_kwh, rapl.saved_kwh) == pytest.approx((model.batch_kwh / 2, model.saved_kwh / 2))
    same = ("gain", "utilisation", "saved_servers", "together_usd_per_year", "apart_usd_per_year")
    assert [getattr(rapl, name) for name in same] == [getattr(model, name) for name in same]


def test_hours_without_readings_count_as_the_others_if_these_are_most() -> None:
    mostly, seldom = saved(measured(1.8, 12.0)), saved(measured(1.7, 11.9))
    assert mostly is not None
    assert seldom is not None
    assert (mostly.energy_source, mostly.energy_kwh) == (EnergySource.RAPL, pytest.approx(3.6))
    assert (seldom.energy_source, seldom.energy_kwh) == (EnergySource.MODEL, pytest.approx(7.2))


def test_a_fleet_says_that_only_some_was_measured() -> None:
    found = saved(shared(0.1, 0.9), measured(3.6))
    assert found is not None
    assert (found.energy_source, found.energy_kwh) == (EnergySource.MIXED, pytest.approx(7.2 + 3.6))


def test_an_idle_host_whose_model_draws_nothing_has_what_was_measured() -> None:
    found = saved_by([CostedUse(measured(2.4, critical=0.0, batch=0.0), CostModel(idle_part=0.0))])
    assert found is not None
    assert (found.energy_kwh, found.batch_kwh, found.saved_kwh) == (2.4, 0.0, 0.0)


def test_a_history_is_summed_over_what_was_measured() -> None:
    def step(busy: float | None, **more: float | None) -> dict[str, float | None]:
        return {"host_cpu_share": busy, "critical_share": 0.1, "batch_share": 0.2, "other_share": 0.0} | more

    steps = [step(0.3, power_watts=100.0), step(0.3, power_watts=None), step(0.3), step(None, power_watts=None)]
    use = use_of_history("kvm7", {"step_s": 1800, "steps": steps})
    assert (use.hours, use.rapl_hours, use.rapl_kwh) == pytest.approx((1.5, 0.5, 0.05))
