"""Long-run shares are the weights', with and without warps. Bars: 0.5 % of the CPU over two seconds, 1 % with warps.

A warp moves up to 12 ms of them from one second into another.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from manager.host.sched_ext import SchedExt
from tests.kernel.inside.warp import lab
from tests.kernel.inside.warp.lab import Load
from tests.kernel.inside.warp.scenarios import ONE_CPU

SPAN_S = 2.0


def parts_of_all(loads: Sequence[Load]) -> list[float]:
    """What each got of what all of them got, which is a CPU but for what looks on."""
    used = lab.shares(loads, SPAN_S)
    assert sum(used) > 0.99
    return [each / sum(used) for each in used]


WARPS = pytest.mark.parametrize(("warp_us", "bar"), [(0, 0.005), (12_000, 0.01)])


def spin(path: str, nice: int = 0) -> Load:
    return Load(path, "spin", 3_600_000, nice=nice)


@WARPS
@pytest.mark.parametrize("name", ONE_CPU)
def test_shares(bvt: SchedExt, name: str, warp_us: int, bar: float) -> None:
    scenario = ONE_CPU[name]
    found, _ = scenario.shares(warp_us, SPAN_S)
    assert found == pytest.approx([each.cpus for each in scenario.spins], abs=bar)


def test_a_weight_that_changes_while_all_run(bvt: SchedExt) -> None:
    folder = lab.group("a", 1)
    lab.group("b", 100)
    loads = [spin("a"), spin("b")]
    for each in loads:
        each.go()
    folder.joinpath("cpu.weight").write_text("300")
    assert parts_of_all(loads) == pytest.approx([0.75, 0.25], abs=0.005)


def test_a_group_that_becomes_idle_while_all_run_and_then_is_no_more(bvt: SchedExt) -> None:
    folder = lab.group("a")
    lab.group("b")
    for idle, share in (("1", 3 / 1027), ("0", 0.5)):
        loads = [spin("a"), spin("b")]
        for each in loads:
            each.go()
        folder.joinpath("cpu.idle").write_text(idle)
        assert parts_of_all(loads) == pytest.approx([share, 1 - share], abs=0.005)


@pytest.mark.parametrize("kind", [("spin", 3_600_000), ("wave", 20, 1, 3_600_000)])
def test_two_groups_with_the_largest_warp_cannot_starve_a_third(bvt: SchedExt, kind: tuple[object, ...]) -> None:
    """Neither by running on nor by sleeping a little, to come back as if they were owed the time."""
    for name in "abc":
        lab.group(name, 100)
    lab.set_warp("a", 1_000_000)
    lab.set_warp("b", 1_000_000)
    loads = [Load("a", *kind), Load("b", *kind), spin("c")]
    assert lab.shares(loads, SPAN_S)[2] > 1 / 3 - 0.03


def test_how_long_a_third_waits_for_two_groups_with_the_largest_warp(bvt: SchedExt) -> None:
    """Not longer than both may borrow, 50 ms each, and what it takes to pay that back."""
    for name in "abc":
        lab.group(name, 100)
    lab.set_warp("a", 1_000_000)
    lab.set_warp("b", 1_000_000)
    loads = [spin("a"), spin("b")]
    third = Load("c", "serve", 50_000, 1000, int(SPAN_S * 1000))
    for each in (*loads, third):
        each.go()
    longest_us = third.result()["max_us"]
    for each in loads:
        each.end()
    assert longest_us < 250_000


def test_the_smallest_weight_still_runs(bvt: SchedExt) -> None:
    lab.group("a", 10_000)
    lab.group("b", 1)
    lab.set_warp("a", 12_000)
    most, least = lab.shares([spin("a"), spin("b")], SPAN_S)
    assert most > 0.98
    assert least > 0
    assert bvt.counters()["rescued"] > 0
