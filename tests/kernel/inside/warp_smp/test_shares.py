"""On four CPUs. Bar: 2 % of what the weights give."""

from __future__ import annotations

import pytest

from manager.host.sched_ext import SchedExt
from tests.kernel.inside.warp import lab
from tests.kernel.inside.warp.lab import Load
from tests.kernel.inside.warp.scenarios import FOUR_CPUS
from tests.kernel.inside.warp.soak import CPUS

SPAN_S = 1.0
SHORT = ("pinned beside floating, which want more", "two VMs as libvirt lays them out, vCPU by vCPU on two CPUs")


@pytest.mark.parametrize("warp_us", [0, 12_000])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.short] if name in SHORT else []) for name in FOUR_CPUS]
)
def test_shares(bvt: SchedExt, name: str, warp_us: int) -> None:
    scenario = FOUR_CPUS[name]
    found, idle = scenario.shares(warp_us, SPAN_S)
    wanted = [each.cpus for each in scenario.spins]
    assert found == pytest.approx(wanted, rel=0.02)
    unwanted = 4 - sum(each.cpus * each.count for each in scenario.spins)
    assert idle == pytest.approx(unwanted, abs=0.05), "a CPU was idle while tasks waited for one"


def test_a_cpu_that_goes_and_comes_back(bvt: SchedExt) -> None:
    lab.group("a")
    pinned = [Load("a", "spin", 3_600_000, cpus=(2,)) for _ in range(2)]
    loads = [*pinned, *(Load("a", "spin", 3_600_000) for _ in range(4))]
    for each in loads:
        each.go()
    (CPUS / "cpu2/online").write_text("0")
    try:
        used, idle = lab.measure(loads, SPAN_S)
    finally:
        (CPUS / "cpu2/online").write_text("1")
    assert [each / sum(used) for each in used] == pytest.approx([1 / 6] * 6, rel=0.02)
    assert idle < 0.05
    found, idle = FOUR_CPUS["five equal tasks"].shares(0, SPAN_S)
    assert found == pytest.approx([0.8], rel=0.02)
    assert idle < 0.05
