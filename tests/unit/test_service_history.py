"""Services over the last minute, from counters that grow, begin anew, and vanish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.service_history import (
    IDLE_S,
    MOST_PORTS,
    MOST_REPORTED,
    PANE_S,
    ServiceHistory,
    begun,
    continued,
    increase,
    services_in,
)
from manager.model.histogram import Histogram
from manager.model.traffic import SeenService, ServiceTraffic, TapProtocol

VM, OTHER = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
EPOCH_S = 1_700_000_000.0
STEP_S = 5.0
DOMAINS = {1: VM, 2: VM, 3: OTHER}


def counters(
    port: int = 80,
    requests: int = 0,
    times_ms: Iterable[float] = (),
    *,
    interface: int = 1,
    protocol: TapProtocol = TapProtocol.HTTP,
    **more: int,
) -> ServiceTraffic:
    counts = {"connections": 0, "answers": 0, "untimed": 0, "unanswered": 0, "errors": 0} | more
    times = Histogram.of(time_ms * 1000 for time_ms in times_ms)
    return ServiceTraffic(interface, port, {protocol: requests}, times=times, **counts)


def run(*readings: Iterable[ServiceTraffic], domains: Mapping[int, str] = DOMAINS) -> ServiceHistory:
    """Readings every ``STEP_S``, the first one that long after all counters were zero."""
    history = begun(0.0)
    for number, traffic in enumerate(readings, start=1):
        history = continued(history, traffic, domains, number * STEP_S, EPOCH_S + number * STEP_S)
    return history


def services(*readings: Iterable[ServiceTraffic]) -> tuple[SeenService, ...]:
    return services_in(run(*readings), DOMAINS)


def test_figures_of_a_service() -> None:
    [service] = services([counters(80, 100, [1.0] * 90 + [20.0] * 10, errors=3, unanswered=2)])
    assert (service.libvirt_uuid, service.port, service.protocol, service.protocol_share) == (VM, 80, "http", 1.0)
    assert (service.rate_rps, service.error_share, service.window_s) == (20.0, 0.05, STEP_S)
    assert (service.p50_ms, service.p95_ms) == (pytest.approx(1, rel=0.01), pytest.approx(20, rel=0.01))
    assert service.since_s == EPOCH_S + STEP_S


def test_a_service_that_appears_is_measured_from_the_reading_before() -> None:
    [service] = services([], [], [counters(80, 50)], [counters(80, 100)])
    assert (service.window_s, service.rate_rps) == (2 * STEP_S, 10.0)
    assert service.since_s == EPOCH_S + 3 * STEP_S


def test_figures_are_of_the_last_one_to_two_panes() -> None:
    """A quick minute, then a slow one: after two panes nothing is left of the quick one."""
    quick = [[counters(80, 10 * number, [1.0] * 10 * number)] for number in range(1, 13)]
    slow = [[counters(80, 120 + number, [1.0] * 120 + [50.0] * number)] for number in range(1, 15)]
    for number in range(1, len(slow) + 1):
        [service] = services(*quick, *slow[:number])
        assert PANE_S <= service.window_s <= 2 * PANE_S + STEP_S
    assert service.p50_ms == pytest.approx(50, rel=0.01)
    assert service.rate_rps == pytest.approx(1 / STEP_S)


def test_the_lowest_p95_of_half_a_minute_is_kept_while_it_is_slow() -> None:
    """Where it had enough response times; what came before a VM's service began anew still counts."""
    quick = [[counters(80, 40 * number, [1.0] * 40 * number)] for number in range(1, 15)]
    slow = [[counters(80, 560 + 40 * number, [1.0] * 560 + [50.0] * 40 * number)] for number in range(1, 20)]
    assert services(*quick[:6])[0].quiet_p95_ms is None
    [service] = services(*quick, *slow)
    assert service.p95_ms == pytest.approx(50, rel=0.01)
    assert service.quiet_p95_ms == pytest.approx(1, rel=0.01)
    [service] = services(*quick, *slow, *quick)
    assert service.quiet_p95_ms == pytest.approx(1, rel=0.01)


def test_half_a_minute_with_few_response_times_is_no_baseline() -> None:
    few = [[counters(80, 16 * number, [1.0] * 16 * number)] for number in range(1, 15)]
    assert services(*few)[0].quiet_p95_ms is None


@pytest.mark.parametrize(
    ("before", "now", "rate"),
    [
        (counters(80, 1000), counters(80, 5), 5 / 10),
        (counters(80, 5, [1.0] * 5), counters(80, 5, [2.0] * 2), 5 / 10),
        (counters(80, 5, errors=2), counters(80, 6), 6 / 10),
        (counters(80, 5), counters(80, 6), 6 / 10),
    ],
    ids=["requests", "times", "errors", "none"],
)
def test_a_counter_that_shrank_began_anew(before: ServiceTraffic, now: ServiceTraffic, rate: float) -> None:
    [service] = services([before], [now])
    assert service.rate_rps == rate
    assert service.error_share == 0


def test_a_port_that_vanishes_is_gone_and_comes_back_from_zero() -> None:
    known = [counters(80, 100)]
    assert services(known, []) == ()
    [service] = services(known, [], [counters(80, 10)])
    assert (service.rate_rps, service.since_s) == (10 / STEP_S, EPOCH_S + 3 * STEP_S)


def test_an_interface_of_no_known_domain_is_left_out() -> None:
    assert services([counters(80, 100, interface=9)]) == ()
    assert services_in(run([counters(80, 100)]), {2: VM}) == ()


def test_a_port_without_requests_is_no_service() -> None:
    assert services([counters(80, 0, connections=3)]) == ()


def test_a_service_is_reported_for_ten_minutes_without_a_request_and_anew_with_the_next() -> None:
    readings = [[counters(80, 100, [1.0] * 100)]] * int(IDLE_S / STEP_S + 1)
    [idle] = services(*readings[:-1])
    assert (idle.rate_rps, idle.p95_ms, idle.protocol, idle.error_share) == (0, None, "http", 0)
    assert idle.since_s == EPOCH_S + STEP_S
    assert services(*readings) == ()
    [again] = services(*readings, [counters(80, 101, [1.0] * 101)])
    assert again.since_s == EPOCH_S + (len(readings) + 1) * STEP_S
    assert again.rate_rps == pytest.approx(1 / STEP_S)


def test_one_port_behind_two_interfaces_of_a_vm_is_one_service() -> None:
    both = [
        counters(80, 10, [1.0] * 10),
        counters(80, 30, [5.0] * 30, interface=2, protocol=TapProtocol.TLS),
        counters(80, 5, interface=3),
    ]
    mine, other = services(both)
    assert (mine.libvirt_uuid, mine.rate_rps, mine.protocol, mine.protocol_share) == (VM, 8.0, "tls", 0.75)
    assert mine.p50_ms == pytest.approx(5, rel=0.01)
    assert (other.libvirt_uuid, other.rate_rps) == (OTHER, 1.0)


def test_the_busiest_ports_of_each_vm_are_reported() -> None:
    many = [counters(port, port) for port in range(1, 41)]
    seen = services([*many, counters(80, 1, interface=3)])
    assert [service.port for service in seen if service.libvirt_uuid == VM] == list(range(41 - MOST_REPORTED, 41))
    assert [service.port for service in seen if service.libvirt_uuid == OTHER] == [80]


def test_no_more_ports_of_a_vm_are_kept_than_there_is_room_for() -> None:
    many = [counters(port, 1) for port in range(1, MOST_PORTS + 1)]
    late = counters(9000, 10_000)
    history = run(many, [*many, late])
    assert {port for _, port in history.latest.traffic} == set(range(1, MOST_PORTS + 1)), "those known come first"
    history = run(many, [*many, late], [*many[1:], late], [*many[1:], counters(9000, 10_010)])
    assert {port for _, port in history.latest.traffic} == {*range(2, MOST_PORTS + 1), 9000}
    [service] = [service for service in services_in(history, DOMAINS) if service.port == 9000]
    assert service.rate_rps == 10 / STEP_S, "what it had before there was room is of unknown times"


traffics = st.dictionaries(
    st.tuples(st.sampled_from([1, 2, 3, 9]), st.integers(1, 100)),
    st.tuples(st.integers(0, 50), st.lists(st.floats(0.01, 1000), max_size=5), st.integers(0, 3)),
    max_size=80,
)


@given(st.lists(traffics, min_size=1, max_size=12))
def test_whatever_is_read_services_are_bounded_and_possible(
    readings: list[dict[tuple[int, int], tuple[int, list[float], int]]],
) -> None:
    """Counters of any size, also such that shrink."""
    history = run(
        *(
            [
                counters(port, requests, times, interface=interface, errors=errors)
                for (interface, port), (requests, times, errors) in reading.items()
            ]
            for reading in readings
        )
    )
    for reading in (history.older, history.newer, history.latest):
        for domain in (VM, OTHER):
            assert len({port for interface, port in reading.traffic if DOMAINS[interface] == domain}) <= MOST_PORTS
    assert history.active.keys() <= history.latest.traffic.keys()
    seen = services_in(history, DOMAINS)
    assert [(one.libvirt_uuid, one.port) for one in seen] == sorted({(one.libvirt_uuid, one.port) for one in seen})
    for domain in (VM, OTHER):
        assert len([one for one in seen if one.libvirt_uuid == domain]) <= MOST_REPORTED
    for service in seen:
        assert service.rate_rps >= 0
        assert 0 <= service.error_share <= 1
        assert 0 < service.window_s <= 2 * PANE_S + STEP_S
        assert EPOCH_S < service.since_s <= EPOCH_S + len(readings) * STEP_S


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30))
def test_the_rate_is_what_came_in_the_window(more: list[int]) -> None:
    totals = [sum(more[: number + 1]) for number in range(len(more))]
    history = run(*([counters(80, total)] for total in totals))
    before = history.older.traffic.get((1, 80))
    passed = totals[-1] - (sum(before.requests.values()) if before else 0)
    for service in services_in(history, DOMAINS):
        assert service.rate_rps * service.window_s == pytest.approx(passed, abs=0.1)
        assert service.window_s <= history.latest.at_s - history.older.at_s


@given(st.lists(st.floats(0.01, 1000), max_size=20), st.lists(st.floats(0.01, 1000), max_size=20), st.integers(0, 1000))
def test_an_increase_is_what_was_added(first: list[float], second: list[float], requests: int) -> None:
    before, added = counters(80, requests, first, errors=1), counters(80, len(second), second, errors=2)
    now = counters(80, requests + len(second), first + second, errors=3)
    assert increase(now, before) == added
    assert increase(now, None) == now
