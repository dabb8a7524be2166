"""What the warp is for: a service that uses less than its share answers as if it were alone."""

from __future__ import annotations

import pytest

from manager.host.sched_ext import SchedExt
from tests.kernel.inside.warp import lab
from tests.kernel.inside.warp.lab import Load

PERIOD_US = 1000
DURATION_MS = 1000
WAVE = ("wave", 6, 42, 100_000)


def p99_us(load_percent: int, antagonist: bool) -> float:
    """Of a service at a load, in its group ``service``."""
    service = Load("service", "serve", PERIOD_US, PERIOD_US * load_percent // 100, DURATION_MS)
    wave = Load("batch", *WAVE) if antagonist else None
    if wave:
        wave.go()
    service.go()
    found = service.result()["p99_us"]
    if wave:
        wave.end()
    return found


@pytest.mark.parametrize("load_percent", [20, 45])
def test_the_square_wave(bvt: SchedExt, load_percent: int) -> None:
    lab.group("service")
    lab.group("batch")
    alone = p99_us(load_percent, antagonist=False)
    assert p99_us(load_percent, antagonist=True) > 1.5 * alone
    lab.set_warp("service", 12_000)
    assert p99_us(load_percent, antagonist=True) < 1.1 * alone
    assert bvt.counters()["warped_preemptions"] > 0


def test_who_uses_more_than_its_share_waits(bvt: SchedExt) -> None:
    """Beyond its share a warp buys nothing but the limit's worth: the other one's share is kept."""
    lab.group("service")
    lab.group("batch")
    lab.set_warp("service", 12_000)
    loads = [Load("service", "serve", PERIOD_US, 900, 10_000), Load("batch", "spin", 3_600_000)]
    assert lab.shares(loads, 1.5) == pytest.approx([0.5, 0.5], abs=0.01)


def test_a_limit_bounds_the_borrowed_time(bvt: SchedExt) -> None:
    lab.group("a")
    lab.group("b")
    lab.set_warp("a", 100_000, limit_us=5_000)
    before = bvt.counters()["limited"]
    lab.shares([Load("a", "spin", 3_600_000), Load("b", "spin", 3_600_000)], 0.5)
    assert bvt.counters()["limited"] > before


def test_of_two_with_warps_the_one_that_waits_has_its_turn(bvt: SchedExt) -> None:
    """Not only when the other is ahead by what its warp is larger, 49 ms: it has half its warp after 8.5 ms."""
    for name, warp_us in (("tight", 100_000), ("loose", 51_000)):
        lab.group(name)
        lab.set_warp(name, warp_us)
    spin, service = Load("tight", "spin", 3_600_000), Load("loose", "serve", 100_000, 1000, 1000)
    for each in (spin, service):
        each.go()
    longest_us = service.result()["max_us"]
    spin.end()
    assert longest_us < 20_000  # 8.5 ms, up to two ticks of 4 ms until that is seen and acted upon, and its own 1 ms
