"""Counters of a control group, by perf_event_open: those of the kernel itself, as this machine may have no PMU."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from manager.errors import HostError
from manager.host.cgroup import read_mounts
from manager.host.resources import perf_events
from manager.host.resources.perf_events import GroupCounters, scaled, why_none
from tests.host.conftest import REAL, descriptors, remove_groups

SOFTWARE = ((1, 0), (1, 2))
"""PERF_TYPE_SOFTWARE: nanoseconds of a pCPU, and page faults."""
ONLINE = sorted(os.sched_getaffinity(0))


@pytest.fixture
def group() -> Iterator[Path]:
    mounts = read_mounts(REAL).by_controller
    mount = mounts.get("perf_event") or mounts.get("")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("NOT TESTED: counters of a group need root and a hierarchy with perf_event")
    folder = mount[0] / f"equipoise-test-perf-{os.getpid()}"
    folder.mkdir()
    yield folder
    remove_groups(folder)


def run_in(group: Path, seconds: float) -> None:
    """A process in that group that uses a pCPU for so long."""
    pid = os.fork()
    if pid == 0:
        try:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            until_s = time.process_time() + seconds
            while time.process_time() < until_s:
                pass
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_what_a_group_does_is_counted_and_nothing_else(group: Path) -> None:
    folder = os.open(group, os.O_RDONLY)
    counters = GroupCounters(folder, ONLINE, SOFTWARE)
    os.close(folder)
    until_s = time.process_time() + 0.05
    while time.process_time() < until_s:
        pass
    assert counters.read() == (0, 0), "this process is not in it"
    run_in(group, 0.2)
    clock_ns, faults = counters.read()
    assert clock_ns > 0.15e9
    assert faults > 0
    assert counters.read() == (clock_ns, faults), "it does no more"
    counters.close()
    counters.close()


def test_without_a_pmu_there_are_no_counters_and_no_descriptor_stays_open(group: Path) -> None:
    if not why_none():
        pytest.skip("NOT TESTED: this machine has a PMU")
    before = descriptors()
    folder = os.open(group, os.O_RDONLY)
    with pytest.raises(HostError, match="performance counters: "):
        GroupCounters(folder, ONLINE)
    with pytest.raises(HostError):
        GroupCounters(folder, ONLINE, (SOFTWARE[0], (0, 1)))
    os.close(folder)
    assert descriptors() == before


@pytest.mark.parametrize(
    ("numbers", "counts"),
    [
        ((2, 100, 100, 7, 9), [7, 9]),
        ((2, 100, 25, 7, 9), [28, 36]),
        ((2, 100, 0, 7, 9), [0, 0]),
        ((2, 0, 0, 0, 0), [0, 0]),
    ],
)
def test_counts_are_scaled_to_all_the_time(numbers: tuple[int, ...], counts: list[int]) -> None:
    assert scaled(struct.pack("=5Q", *numbers), 2) == counts


@pytest.mark.parametrize("length", [0, 8, 39])
def test_an_answer_that_is_cut_short(length: int) -> None:
    with pytest.raises(HostError, match="cut short"):
        scaled(bytes(length), 2)


def test_a_machine_whose_call_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_events, "_CALLS", {})
    assert why_none() == "Function not implemented"
