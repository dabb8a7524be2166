"""Who used CPU time, from two samples of a host's processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from manager.host.doctor.load_check import CpuLoad, compare, judge_load, take_sample
from manager.host.registry import HostPaths
from tests.host.conftest import REAL, until
from tests.host.test_doctor_trees import write


def stat_line(pid: int, name: str, ticks: int, start: int = 5) -> dict[str, str]:
    fields = ["S", *["0"] * 10, str(ticks), "0", *["0"] * 6, str(start), "0"]
    return {f"proc/{pid}/stat": f"{pid} ({name}) {' '.join(fields)}\n"}


def host_stat(busy: int) -> dict[str, str]:
    lines = [f"cpu {busy} 0 0 1000 0 0 0 777 0 0", *(f"cpu{i} 0 0 0 0 0 0 0 0 0 0" for i in range(4)), "intr 1"]
    return {"proc/stat": "\n".join(lines) + "\n"}


def test_load_is_what_no_vm_used(tmp_path: Path) -> None:
    """One second of four pCPUs: a VM by its group, one by its pid file, a compile, and what ended meanwhile."""
    groups = {
        10: "4:cpu:/machine/qemu-1-web.libvirt-qemu/emulator\n",
        11: "4:cpu:/\n",
        12: "4:cpu:/user.slice/session-1.scope\n",
        13: "4:cpu:/\n",
    }
    files = {f"proc/{pid}/cgroup": text for pid, text in groups.items()} | {"run/libvirt/qemu/db.pid": "11"}
    names = {10: "qemu-system-x86", 11: "qemu-system-x86", 12: "cc1 (plus)", 13: "kworker/0:1"}
    paths = HostPaths(tmp_path)
    own = stat_line(os.getpid(), "doctor", 0)
    write(tmp_path, files | host_stat(1000) | own)
    for pid, name in names.items():
        write(tmp_path, stat_line(pid, name, 500))
    before = take_sample(paths)
    used = {10: 100, 11: 50, 12: 80, 13: 2}
    for pid, ticks in used.items():
        write(tmp_path, stat_line(pid, names[pid], 500 + ticks))
    write(tmp_path, host_stat(1000 + 100 + 50 + 80 + 2 + 40 + 7) | stat_line(os.getpid(), "doctor", 7))
    load = compare(paths, before, take_sample(paths), 1.0)
    assert (load.cpus, round(load.vms, 6), round(load.outside, 6)) == (4, 1.5, 1.22)
    assert [(name, round(used, 6)) for name, used in load.names] == [
        ("cc1 (plus) in /user.slice", 0.8),
        ("processes that ended meanwhile", 0.4),
        ("kworker", 0.02),
    ]


def test_a_process_that_took_over_a_pid_is_another_one(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    write(tmp_path, host_stat(0) | stat_line(10, "old", 500, start=5) | {"proc/10/cgroup": "0::/\n"})
    before = take_sample(paths)
    write(tmp_path, host_stat(30) | stat_line(10, "new", 30, start=6))
    assert compare(paths, before, take_sample(paths), 1.0).names == (("new", 0.3),)


@pytest.mark.parametrize(
    ("outside", "top", "status"),
    [(0.3, 0.2, "works"), (6.4, 0.2, "degraded"), (0.6, 0.5, "warning"), (6.3, 0.1, "works")],
)
def test_a_tenth_of_the_host_is_much(outside: float, top: float, status: str) -> None:
    found = judge_load(CpuLoad(64, 10.0, outside, (("cc1", top),)))
    assert found.status == status
    assert "cc1" in found.detail


def test_a_busy_process_of_this_machine_is_named() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            before = take_sample(REAL)
            key = next(key for key in before.processes if key[0] == busy.pid)
            until(lambda: take_sample(REAL).processes[key][1] >= before.processes[key][1] + 20, "it used 0.2 s")
            load = compare(REAL, before, take_sample(REAL), 0.2)
        finally:
            busy.kill()
    assert load.cpus == len(os.sched_getaffinity(0)) or load.cpus == os.cpu_count()
    assert any(name.startswith("python") and used >= 0.9 for name, used in load.names), load
