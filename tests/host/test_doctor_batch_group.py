"""Whether batch VMs need a group above them: what is tried for it on this machine's kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from manager.host.doctor import batch_group_check
from manager.host.doctor.batch_group_check import WakePhase, measure
from manager.host.doctor.scratch import scratch_group
from manager.host.registry import CgroupCpu
from tests.host.conftest import REAL
from tests.host.test_doctor_kernel import OURS, hierarchy, look, nothing_is_left

__all__ = ["hierarchy", "nothing_is_left"]


def phase(waits: int) -> WakePhase:
    return WakePhase((0,) * waits, 400)


def test_weights_that_do_not_change_never_make_a_group_necessary(
    hierarchy: tuple[CgroupCpu, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever this kernel is like, and however busy it is now."""
    monkeypatch.setattr(batch_group_check, "_OTHER_WEIGHT", 1)
    found = look("batch-group", tmp_path)
    assert found.status in {"works", "unknown"}, found.detail


def test_it_is_tried_on_one_pcpu_and_by_turns(
    hierarchy: tuple[CgroupCpu, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, root = hierarchy
    seen: list[tuple[str, ...]] = []

    def spy(waker: object, writer: object, busy: list[object], folders: list[Path]) -> WakePhase:
        top = root / OURS
        processes = {
            path.parent.relative_to(top).as_posix(): path.read_text().split() for path in top.rglob("cgroup.procs")
        }
        seen.append(tuple(folder.relative_to(top).as_posix() for folder in folders))
        assert {name for name, pids in processes.items() if pids} == {"critical", "batch0", "batch1"}
        affinities = [os.sched_getaffinity(int(pid)) for pids in processes.values() for pid in pids]
        assert affinities == [{max(allowed)}] * 3
        return phase(30)

    monkeypatch.setattr(batch_group_check, "_phase", spy)
    allowed = frozenset(os.sched_getaffinity(0))
    with scratch_group(root) as group:
        measure(cpu, group, max(allowed), allowed)
    assert seen == [("batch0", "batch1"), ("batch/batch0", "batch/batch1")] * 6


def test_it_goes_on_until_it_can_tell(hierarchy: tuple[CgroupCpu, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, root = hierarchy
    tried = [phase(5)] * 14 + [phase(90)] * 100
    monkeypatch.setattr(batch_group_check, "_phase", lambda *_arguments: tried.pop(0))
    cpu, allowed = hierarchy[0], frozenset(os.sched_getaffinity(0))
    with scratch_group(root) as group:
        assert len(measure(cpu, group, min(allowed), allowed)) == 8
    tried[:] = [phase(0)] * 100
    with scratch_group(root) as group:
        assert len(measure(cpu, group, min(allowed), allowed)) == 16


def test_one_pcpu_is_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    found = look("batch-group", tmp_path)
    assert found.status == "unknown"
    assert "two pCPUs" in found.detail
    assert REAL.online_cpus.exists()
