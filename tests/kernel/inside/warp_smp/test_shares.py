"""On four CPUs. Bar: 2 % of what the weights give.

Of what all tasks used together: interrupts take a large part of CPUs that run in turns, at a quarter of the speed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from manager.host.sched_ext import SchedExt
from tests.kernel.inside.warp import lab
from tests.kernel.inside.warp.lab import Load

SPAN_S = 2.0
CPUS = Path("/sys/devices/system/cpu")


def spins(path: str, count: int, *cpus: int) -> list[Load]:
    return [Load(path, "spin", 3_600_000, cpus=cpus) for _ in range(count)]


def used_by(loads: list[Load], *counts: int, span_s: float = SPAN_S) -> list[float]:
    """CPUs used by the first so many loads together, the next so many, and so on."""
    each, idle = lab.measure(loads, span_s)
    assert idle < 0.02, "a CPU was idle while tasks waited for one"
    each = [4.0 * one / sum(each) for one in each]
    return [sum(each[sum(counts[:index]) : sum(counts[: index + 1])]) for index in range(len(counts))]


def test_five_equal_tasks(bvt: SchedExt) -> None:
    lab.group("a")
    assert used_by(spins("a", 5), 1, 1, 1, 1, 1) == pytest.approx([0.8] * 5, rel=0.02)


@pytest.mark.parametrize("warp_us", [0, 12_000])
def test_two_levels(bvt: SchedExt, warp_us: int) -> None:
    lab.group("machine.slice")
    lab.group("machine.slice/x", 100)
    lab.group("machine.slice/y", 300)
    lab.set_warp("machine.slice/x", warp_us)
    loads = spins("machine.slice/x", 3) + spins("machine.slice/y", 5)
    assert used_by(loads, 3, 5) == pytest.approx([1.0, 3.0], rel=0.02)


def test_a_weight_that_one_cpu_cannot_satisfy(bvt: SchedExt) -> None:
    lab.group("large", 10_000)
    lab.group("a", 100)
    lab.group("b", 300)
    loads = spins("large", 1) + spins("a", 3) + spins("b", 4)
    assert used_by(loads, 1, 3, 4) == pytest.approx([1.0, 0.75, 2.25], rel=0.02)


def test_pinned_tasks_share_their_cpu_and_no_other_idles(bvt: SchedExt) -> None:
    lab.group("a", 100)
    lab.group("b", 300)
    lab.group("c", 100)
    loads = spins("a", 1, 0) + spins("b", 1, 0) + spins("c", 3)
    first, second, floating = used_by(loads, 1, 1, 3, span_s=6.0)
    assert first / (first + second) == pytest.approx(0.25, rel=0.03)
    assert floating == pytest.approx(3.0, rel=0.03)


def test_a_cpu_that_goes_and_comes_back(bvt: SchedExt) -> None:
    lab.group("a")
    loads = [*spins("a", 2, 2), *spins("a", 4)]
    for each in loads:
        each.go()
    (CPUS / "cpu2/online").write_text("0")
    try:
        used_by(loads, 2, 4)
    finally:
        (CPUS / "cpu2/online").write_text("1")
    assert used_by(spins("a", 6), 6) == [pytest.approx(4.0)]
