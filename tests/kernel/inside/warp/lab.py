"""Loads in control groups of a guest, and what becomes of them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from manager.host.registry import HostPaths
from manager.host.sched_ext import SchedExt, Warp

CGROUPS = Path("/sys/fs/cgroup")
LOAD, BPFTOOL = "/bin/load", "/bin/bpftool"
SETTLE_S = 0.3


def scheduler() -> SchedExt:
    return SchedExt(HostPaths(Path("/")), BPFTOOL)


def be_prompt() -> None:
    """Let this process run whenever it wants to, whatever it measures meanwhile."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))


def group(path: str, weight: int = 100) -> Path:
    """A control group below the root, its parents made with it."""
    folder = CGROUPS
    for part in Path(path).parts:
        (folder / "cgroup.subtree_control").write_text("+cpu")
        folder /= part
        folder.mkdir(exist_ok=True)
    (folder / "cpu.weight").write_text(str(weight))
    return folder


def remove_groups() -> None:
    """Remove all groups, which must be empty."""
    for folder in sorted(CGROUPS.rglob("*/"), reverse=True):
        folder.rmdir()


def set_warp(path: str, warp_us: int, limit_us: int = 0) -> None:
    scheduler().set_warp((CGROUPS / path).stat().st_ino, Warp(warp_us, limit_us))


class Load:
    """A running program of load.c, which waits for ``go``; ``fifo`` is its real-time priority, 0 for none."""

    def __init__(
        self,
        path: str,
        *arguments: object,
        nice: int = 0,
        cpus: Sequence[int] = (),
        fifo: int = 0,
    ) -> None:
        def prepare() -> None:
            os.sched_setscheduler(0, os.SCHED_FIFO if fifo else os.SCHED_OTHER, os.sched_param(fifo))
            os.nice(nice)
            if cpus:
                os.sched_setaffinity(0, cpus)
            (CGROUPS / path / "cgroup.procs").write_text("0")

        self.load_name = " ".join(map(str, (path, *arguments)))
        self.process = subprocess.Popen(
            [LOAD, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=prepare,  # noqa: PLW1509 - there is one thread
        )
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline()) == {"ready": True}

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, float]:
        """What it says at its end."""
        out, _ = self.process.communicate()
        found: dict[str, float] = json.loads(out)
        return found

    def used_ns(self) -> int:
        """CPU time so far (Documentation/scheduler/sched-stats.rst)."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0])

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def idle_ticks() -> int:
    """Of all CPUs, proc_stat(5)."""
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[4])


def shares(loads: Sequence[Load], span_s: float) -> list[float]:
    """The CPUs that each of some loads used, after they were started together and ran for a little while."""
    return measure(loads, span_s)[0]


def measure(loads: Sequence[Load], span_s: float) -> tuple[list[float], float]:
    """The same, and how many CPUs were idle."""
    for each in loads:
        each.go()
    time.sleep(SETTLE_S)
    idle, began, before = idle_ticks(), time.monotonic_ns(), [each.used_ns() for each in loads]
    time.sleep(span_s)
    used = [each.used_ns() - earlier for each, earlier in zip(loads, before, strict=True)]
    wall_ns = time.monotonic_ns() - began
    idle_s = (idle_ticks() - idle) / os.sysconf("SC_CLK_TCK")
    for each in loads:
        each.end()
    return [each / wall_ns for each in used], idle_s * 1e9 / wall_ns


def run_together(*loads: Load) -> list[dict[str, float]]:
    """The results of loads that begin at the same time."""
    for each in loads:
        each.go()
    return [each.result() for each in loads]
