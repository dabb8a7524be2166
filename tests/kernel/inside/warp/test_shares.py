"""Long-run shares are the weights', with and without warps. Bars: 0.5 % of the CPU over two seconds, 1 % with warps.

A warp moves up to 12 ms of them from one second into another.
"""

from __future__ import annotations

import pytest

from manager.host.sched_ext import SchedExt
from tests.kernel.inside.warp import lab
from tests.kernel.inside.warp.lab import Load

SPAN_S = 2.0
WARPS = pytest.mark.parametrize(("warp_us", "bar"), [(0, 0.005), (12_000, 0.01)])


def spin(path: str, nice: int = 0) -> Load:
    return Load(path, "spin", 3_600_000, nice=nice)


@WARPS
def test_two_groups(bvt: SchedExt, warp_us: int, bar: float) -> None:
    lab.group("a", 100)
    lab.group("b", 300)
    lab.set_warp("a", warp_us)
    assert lab.shares([spin("a"), spin("b")], SPAN_S) == pytest.approx([0.25, 0.75], abs=bar)


@WARPS
def test_two_levels(bvt: SchedExt, warp_us: int, bar: float) -> None:
    """VMs in a slice share the slice's part, whatever the weights of others outside."""
    lab.group("machine.slice", 100)
    lab.group("machine.slice/x", 100)
    lab.group("machine.slice/y", 300)
    lab.group("other", 100)
    lab.set_warp("machine.slice/x", warp_us)
    loads = [spin("machine.slice/x"), spin("machine.slice/y"), spin("machine.slice/y"), spin("other")]
    assert lab.shares(loads, SPAN_S) == pytest.approx([0.125, 0.1875, 0.1875, 0.5], abs=bar)


@WARPS
def test_eight_tasks_with_nice(bvt: SchedExt, warp_us: int, bar: float) -> None:
    """Weights 1024 for nice 0 and 335 for nice 5, as EEVDF's."""
    for name in "abcd":
        lab.group(name, 100)
    lab.set_warp("a", warp_us)
    loads = [spin(name, nice) for name in "abcd" for nice in (0, 5)]
    expected = [0.25 * weight / (1024 + 335) for _ in "abcd" for weight in (1024, 335)]
    assert lab.shares(loads, SPAN_S) == pytest.approx(expected, abs=bar)


def test_a_weight_that_changes_while_all_run(bvt: SchedExt) -> None:
    folder = lab.group("a", 1)
    lab.group("b", 100)
    loads = [spin("a"), spin("b")]
    for each in loads:
        each.go()
    folder.joinpath("cpu.weight").write_text("300")
    assert lab.shares(loads, SPAN_S) == pytest.approx([0.75, 0.25], abs=0.005)


def test_two_warped_groups_cannot_starve_a_third(bvt: SchedExt) -> None:
    for name in "abc":
        lab.group(name, 100)
    lab.set_warp("a", 100_000)
    lab.set_warp("b", 100_000)
    loads = [spin("a"), spin("b"), spin("c")]
    assert lab.shares(loads, SPAN_S) == pytest.approx([1 / 3] * 3, abs=0.03)


def test_the_smallest_weight_still_runs(bvt: SchedExt) -> None:
    lab.group("a", 10_000)
    lab.group("b", 1)
    lab.set_warp("a", 12_000)
    most, least = lab.shares([spin("a"), spin("b")], SPAN_S)
    assert most > 0.98
    assert least > 0
    assert bvt.counters()["rescued"] > 0
