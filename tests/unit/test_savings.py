"""The cost model against the study's own table, and what cannot be otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.savings import CostModel, HostUse, saved_by

MODEL = CostModel()
SHARES = st.floats(0, 1)


def shared(critical: float, batch: float, other: float = 0.0, hours: float = 24.0, host: str = "kvm7") -> HostUse:
    return HostUse(host, critical, batch, other, hours)


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
    found = saved_by([shared(0.1, 0.9)], MODEL)
    assert found is not None
    assert (found.servers, found.saved_servers, found.utilisation) == (1, 0.9, 1.0)
    assert found.gain == pytest.approx((MODEL.tco_usd(0.1) + 0.9 * MODEL.tco_usd(1)) / MODEL.tco_usd(1) - 1)
    assert found.energy_kwh == pytest.approx(0.3 * 24)
    assert found.batch_kwh == pytest.approx(0.3 * 0.45 * 24)
    assert found.saved_kwh == pytest.approx((0.165 + 0.9 * 0.3 - 0.3) * 24)


def test_hosts_that_were_not_measured_do_not_count() -> None:
    assert saved_by([], MODEL) is None
    assert saved_by([shared(0.1, 0.9, hours=0.0)], MODEL) is None
    found = saved_by([shared(0.1, 0.9, hours=0.0), shared(0.2, 0.5)], MODEL)
    assert found == saved_by([shared(0.2, 0.5)], MODEL)


@given(SHARES, SHARES, SHARES, st.floats(0.1, 1000))
def test_sharing_never_costs_more(critical: float, batch: float, other: float, hours: float) -> None:
    critical, batch = critical * 0.5, batch * 0.3
    found = saved_by([shared(critical, batch, other * 0.2, hours)], MODEL)
    assert found is not None
    assert found.gain >= -1e-9
    assert found.apart_usd_per_year >= found.together_usd_per_year - 1e-6
    assert found.saved_kwh >= -1e-6
    assert 0 <= found.batch_kwh <= found.energy_kwh


@given(st.lists(st.tuples(SHARES, SHARES), min_size=1, max_size=10))
def test_a_fleet_is_the_sum_of_its_hosts(shares: list[tuple[float, float]]) -> None:
    uses = [shared(critical / 2, batch / 2, host=f"kvm{place}") for place, (critical, batch) in enumerate(shares)]
    fleet, each = saved_by(uses, MODEL), [saved_by([use], MODEL) for use in uses]
    assert fleet is not None
    assert fleet.together_usd_per_year == pytest.approx(sum(one.together_usd_per_year for one in each if one))
    assert fleet.saved_kwh == pytest.approx(sum(one.saved_kwh for one in each if one), abs=1e-6)
