"""The best static setting of each phase, by search."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise

import pytest

from manager.sim.compare import check_policy, run_once
from manager.sim.generate import random_scenario
from manager.sim.oracle import (
    ORACLE,
    LoadPhase,
    OracleSearch,
    Score,
    SearchLimits,
    StaticSetting,
    phases,
    play,
    run_oracle,
)
from manager.sim.scenario import BatchSpec, Constant, Ramp, Scenario, Segment, Sine
from tests.sim.build import app, scenario

BATCH = (BatchSpec("batch", 1),)


def flooded(**fields: object) -> Scenario:
    """From second 30 `hopeless` wants twice the host: with equal weights, `modest` has not enough, either."""
    modest = app("modest", Constant(30.0), mean_ms=18.0, sla_ms=250.0)
    hopeless = app("hopeless", Constant(5.0, 30.0), Constant(70.0, 70.0), mean_ms=30.0, sla_ms=200.0, timeout_s=5.0)
    return scenario(modest, hopeless, pcpus=1, batch=BATCH, duration_s=100.0, settle_s=10.0, **fields)


def test_it_demotes_the_application_that_nothing_can_save() -> None:
    search = OracleSearch(flooded())
    result = search.run()
    priority = run_once(flooded(), "priority")
    usual, spared = priority.applications[0].violated_share, result.applications[0].violated_share
    assert usual > 0.4
    assert spared < 0.15
    from_s, last = search.course[-1]
    assert from_s == 30
    assert last.parts[0] == 1.0
    assert last.parts[1] < 1.0
    assert result.batch_progress == pytest.approx(priority.batch_progress or 0.0, abs=0.02)


def test_what_it_found_is_what_its_schedule_gives() -> None:
    search = OracleSearch(flooded())
    assert search.run() == play(flooded(), search.course)


def test_priority_is_a_schedule() -> None:
    assert replace(play(flooded(), [(0.0, StaticSetting((1.0, 1.0)))]), policy="priority") == run_once(
        flooded(), "priority"
    )


@pytest.mark.parametrize("seed", range(4))
def test_it_is_never_worse_than_priority(seed: int) -> None:
    short = replace(random_scenario(seed), duration_s=120.0)
    oracle = run_oracle(short, limits=SearchLimits(4))
    assert oracle.violated_share <= run_once(short, "priority").violated_share
    assert oracle.policy == ORACLE


def test_a_worse_find_gives_way_to_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = run_once(flooded(), "priority")
    worse = replace(usual, applications=tuple(replace(one, violated_share=1.0) for one in usual.applications))
    monkeypatch.setattr(OracleSearch, "run", lambda *_: worse)
    assert replace(run_oracle(flooded()), policy="priority") == usual


def test_it_lets_vms_float_where_their_pins_harm() -> None:
    """Each of two vCPUs has a pCPU for itself under pins, of which one would do most of the time."""
    busy = app("busy", Constant(40.0), mean_ms=30.0, vcpus=2, sla_ms=200.0)
    pinned = scenario(busy, app("rare", Constant(1.0), mean_ms=5.0), pcpus=2, duration_s=60.0, pinning=True)
    floating = play(pinned, [(0.0, StaticSetting((1.0, 1.0), floats=True))])
    unpinned = play(replace(pinned, pinning=False), [(0.0, StaticSetting((1.0, 1.0)))])
    assert floating.applications == unpinned.applications
    assert play(pinned, [(0.0, StaticSetting((1.0, 1.0)))]).applications != unpinned.applications
    best = run_oracle(pinned, limits=SearchLimits(4))
    assert best.violated_share <= unpinned.violated_share


def test_it_runs_beside_threads() -> None:
    """A fork would not have them: it is done in another process."""
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait)
    steps: list[int] = []
    short = replace(flooded(), duration_s=20.0)
    expected = run_oracle(short)
    thread.start()
    try:
        assert run_oracle(short, None, lambda: steps.append(1)) == expected
    finally:
        waiting.set()
        thread.join()
    assert len(steps) == 4


def test_a_run_that_fails_is_told() -> None:
    def fail() -> Score:
        raise SystemExit

    with pytest.raises(RuntimeError, match="failed"):
        OracleSearch._apart(fail)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ((Constant(1.0),), [(0, 60)]),
        ((Constant(1.0, 100.0), Constant(2.0, 50.0), Constant(1.0)), [(0, 20), (20, 30), (30, 60)]),
        ((Constant(1.0, 103.0), Constant(2.0)), [(0, 20), (20, 60)]),
        ((Constant(1.0, 10.0), Constant(2.0)), [(0, 60)]),
        ((Ramp(1.0, 2.0, 150.0), Constant(2.0)), [(0, 10), (10, 20), (20, 30), (30, 60)]),
        ((Sine(2.0, 1.0, 100.0),), [(0, 12), (12, 24), (24, 36), (36, 48), (48, 60)]),
    ],
)
def test_phases_are_cut_where_loads_change(load: tuple[Segment, ...], expected: list[tuple[int, int]]) -> None:
    made = scenario(app("a", *load), duration_s=300.0)
    assert [(phase.first, phase.end) for phase in phases(made)] == expected


@pytest.mark.parametrize("seed", range(40))
def test_phases_are_the_whole_run_and_few(seed: int) -> None:
    made = phases(random_scenario(seed))
    assert 1 <= len(made) <= 10
    assert (made[0].first, made[-1].end) == (0, 120)
    assert all(before.end == after.first for before, after in pairwise(made))
    assert all(phase.end - phase.first >= 4 for phase in made)
    assert isinstance(made[0], LoadPhase)


def test_its_name_is_known_to_commands() -> None:
    assert check_policy(ORACLE) == ORACLE
