"""A small fleet beside managers and databases that fail: the short form of ``tests.bench.fleet_faults``."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.bench.fault_agents import Exchange, Keys, Seen
from tests.bench.fault_figures import Phase, Read, find, largest_gap_s, regular_after_s, stored_after_s
from tests.bench.fleet_faults import FAULTS, Options, run

SMALL = Options(
    hosts=6,
    vms=6,
    interval_s=1.0,
    calm_s=3.0,
    fault_s=2.0,
    away_s=3.0,
    faults=FAULTS,
    away_history_min=2.0,
    more=("--small-fleet", "0"),
    workers=(2, 1),
)
_GAP_S = 10.0
"""Of a machine on which much else runs; without a manager a tick that waited for one would take longer."""


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("gcc") is None, reason="mounts a disk, and compiles what delays it"
)
def test_a_fleet_loses_nothing_that_was_acknowledged() -> None:
    result = run(SMALL)
    assert not result.lost
    assert not result.twice
    assert result.undelivered == 0
    assert result.waited > SMALL.hosts * 120 * 3, "two minutes of ticks, and of windows of three applications"
    assert result.acknowledged > result.waited
    assert [one.name for one in result.found] == ["none", *FAULTS]
    by_name = {one.name: one for one in result.found}
    assert by_name["away"].failed > 0, "the fault was one"
    assert by_name["failover"].failed > 0
    assert max(one.tick_gap_s for one in result.found) < _GAP_S, "control does not wait for managers"


def test_a_host_that_stands_still_is_seen() -> None:
    ticks = [("a", 1.0), ("a", 2.0), ("b", 1.0), ("b", 2.0), ("b", 3.0), ("b", 8.0)]
    assert largest_gap_s(ticks, 0.0, 9.0) == 7.0, "a ticks no more"
    assert largest_gap_s(ticks, 0.0, 2.0) == 1.0


def test_what_waited_is_stored_when_a_newer_tick_is() -> None:
    phase = Phase("away", 0.0, 100.0, 5000.0, 200.0)
    waited = Exchange("a", 101.0, 0.1, answered=True, sent_bytes=10, newest_tick_s=4999.0)
    newer = Exchange("a", 130.0, 0.1, answered=True, sent_bytes=10, newest_tick_s=5001.0)
    assert stored_after_s([newer, waited], phase, 1) == 30.0
    assert stored_after_s([waited], phase, 1) == float("inf")


def test_a_fleet_is_steady_once_no_host_misses_its_turn_any_more() -> None:
    phase = Phase("away", 0.0, 100.0, 5000.0, 200.0)

    def answered(host: str, *times_s: float) -> list[Exchange]:
        return [Exchange(host, at_s, 0.1, answered=True, sent_bytes=10) for at_s in times_s]

    steady = answered("a", *range(105, 200, 10))
    assert regular_after_s(steady, phase, 1, 15.0) == 0.0
    slow = answered("b", 110, 140, 150, 165, 180, 195)
    assert regular_after_s(steady + slow, phase, 2, 15.0) == 40.0
    assert regular_after_s(steady + slow[:-1], phase, 2, 15.0) == float("inf"), "it still misses turns at the end"
    assert regular_after_s(steady, phase, 2, 15.0) == float("inf"), "a host that never came"


def test_a_fault_is_told_by_what_was_seen_of_it() -> None:
    phase = Phase("away", 0.0, 100.0, 5000.0, 200.0)
    exchanges = [
        Exchange("a", 50.0, 3.0, answered=False, sent_bytes=10),
        Exchange("a", 104.0, 0.2, answered=True, sent_bytes=10, newest_tick_s=5001.0),
        Exchange("b", 130.0, 0.1, answered=False, sent_bytes=10),
        Exchange("b", 131.0, 0.1, answered=True, sent_bytes=10, newest_tick_s=5020.0),
    ]
    ticks = [(host, float(at_s)) for host in "ab" for at_s in range(0, 200, 5)]
    reads = [Read(10.0, 2.0, answered=False), Read(110.0, 0.1, answered=True)]
    found = find(phase, Seen(exchanges, ticks, Keys(), 0, 0), reads, 2, 100.0)
    assert (found.failed, found.live_s, found.steady_s, found.stored_s, found.busiest_s) == (2, 31.0, 31.0, 31.0, 1)
    assert (found.tick_gap_s, found.reads, found.reads_failed, found.during_ms) == (5.0, 2, 1, None)


def test_what_is_lost_or_only_waits_is_told_apart() -> None:
    acknowledged, stored = Keys({"a", "b"}), Keys({"b", "c"})
    assert acknowledged.without(stored) == ["a"]
