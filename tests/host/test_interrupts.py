"""Affinity of interrupts, on trees and on this machine's own."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.knob_files import Interrupts, read_affinity
from manager.host.registry import HostPaths
from manager.host.topology_reader import discover
from manager.model.knob_spec import KnobValue
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from tests.host.conftest import REAL


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    folder = tmp_path / "proc/irq/40"
    folder.mkdir(parents=True)
    (folder / "smp_affinity_list").write_text("0-3\n")
    return HostPaths(tmp_path)


def write_affinity(paths: HostPaths, irq: int, value: KnobValue) -> KnobValue:
    return Interrupts(paths, lambda: ()).write(KnobKey(HOST_UUID, Knob.IRQ_AFFINITY, irq), value, None)


def test_reading_and_writing(paths: HostPaths) -> None:
    assert read_affinity(paths, 40) == {0, 1, 2, 3}
    assert write_affinity(paths, 40, frozenset({1, 2})) == {1, 2}
    assert (paths.irq(40) / "smp_affinity_list").read_text() == "1-2"


def test_an_interrupt_that_is_gone(paths: HostPaths) -> None:
    assert read_affinity(paths, 41) is None
    with pytest.raises(VmVanished):
        write_affinity(paths, 41, frozenset({1}))


def test_what_makes_no_sense(paths: HostPaths) -> None:
    (paths.irq(40) / "smp_affinity_list").write_text("what\n")
    with pytest.raises(HostError):
        read_affinity(paths, 40)
    with pytest.raises(HostError) as caught:
        write_affinity(paths, 40, 3)
    assert caught.value.errno == errno.EINVAL


def test_this_machines_own_interrupts() -> None:
    """Each queue is sent where it goes now, then back; the kernel reports what was written."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: interrupts need root")
    queues = [queue for queue in discover(REAL).queues if not queue.managed]
    if not queues:
        pytest.skip("NOT TESTED: this machine has no network queues")
    for queue in queues:
        before = read_affinity(REAL, queue.irq)
        assert before is not None
        wanted = frozenset({max(queue.serving or before)})
        try:
            assert write_affinity(REAL, queue.irq, wanted) == wanted
            with pytest.raises(HostError) as caught:
                write_affinity(REAL, queue.irq, frozenset({8191}))
            assert caught.value.errno in {errno.EINVAL, errno.EOVERFLOW, errno.ERANGE}
        finally:
            assert write_affinity(REAL, queue.irq, before) == before
