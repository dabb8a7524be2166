"""Scratch cgroups and processes: made to be written to, and gone afterwards whatever happens."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from manager.errors import HostError
from manager.host.cgroup import cpu_controller, read_mounts
from manager.host.doctor.check import CheckResult, Subject, unknown
from manager.host.files import text_of
from manager.host.registry import CGROUP_V1, CgroupCpu, HostPaths

_PREFIX = "equipoise-doctor-"
_NAME = re.compile(rf"^{_PREFIX}(\d+)$")
_REMOVE_S = 2.0
# Says that it runs, waits for a line, then spins; ends by itself soon, should no one be left to end it.
_SPIN = """
import os, time
os.write(1, b"r")
if os.read(0, 1):
    end = time.monotonic() + 10
    while time.monotonic() < end:
        pass
"""


def cpu_hierarchy(paths: HostPaths) -> tuple[CgroupCpu, Path]:
    """The cgroup version that weighs CPU time, and the root of its hierarchy.

    Raises HostError where no hierarchy has a cpu controller, OSError where the mounts cannot be read.
    """
    mounts = read_mounts(paths)
    cpu = cpu_controller(mounts)
    if cpu is None:
        raise HostError("no cgroup hierarchy has a cpu controller", errno.ENOENT)
    return cpu, mounts.by_controller[cpu.controller][0]


def is_enabled(cpu: CgroupCpu, folder: Path) -> bool:
    """Whether groups below a folder have the cpu controller's files: v2 wants it delegated. Raises OSError."""
    return cpu is CGROUP_V1 or "cpu" in (text_of(folder / "cgroup.subtree_control") or "").split()


def on_scratch_group(subject: Subject, attempt: Callable[[CgroupCpu, Path], CheckResult]) -> CheckResult:
    """The result of an attempt on a new group with the CPU controller. Raises HostError, OSError."""
    cpu, root = cpu_hierarchy(subject.paths)
    if not is_enabled(cpu, root):
        return unknown(
            "not tried: the cpu controller is not enabled for groups below the root",
            "see the finding `cgroup-delegation`",
        )
    with scratch_group(root) as group:
        return attempt(cpu, group)


def refused_value(file: Path, text: str) -> str:
    """Write to a kernel file and read it back: what is wrong, empty where it holds that. Raises OSError."""
    file.write_text(text)
    held = file.read_text().strip()
    return "" if held == text else f"{file.name}: {text} was written and {held} read back"


@contextmanager
def scratch_group(root: Path) -> Iterator[Path]:
    """A new group ``equipoise-doctor-PID`` right below a hierarchy's root, removed with all below it.

    There, as a sibling of machine.slice and of libvirt's machine, it disturbs nothing: no VM is among its siblings, and
    no manager of units keeps a list of what may be there. What a killed doctor left is removed as well. Raises
    OSError.
    """
    _sweep(root)
    folder = root / f"{_PREFIX}{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        remove_groups(folder)


def _sweep(root: Path) -> None:
    """Remove empty scratch groups of processes that are no more."""
    for entry in root.iterdir():
        match = _NAME.match(entry.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            with contextlib.suppress(OSError):  # not empty, or removed by another doctor just now
                remove_groups(entry)


def remove_groups(top: Path) -> None:
    """Remove a group and those below it. Raises OSError when one cannot be removed within a moment."""
    for folder, _, _ in os.walk(top, topdown=False):
        deadline = time.monotonic() + _REMOVE_S
        while True:
            try:
                with contextlib.suppress(FileNotFoundError):
                    Path(folder).rmdir()
                break
            except OSError as error:  # a process that just ended is still being counted
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)


class ScratchProcess(subprocess.Popen[bytes]):
    """A process of our own that sleeps until it is to spin, or to do what another program says."""

    def __init__(self, program: str = _SPIN) -> None:
        """Raises OSError."""
        command = [sys.executable, "-I", "-S", "-c", program]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        super().__init__(command, stdin=pipe, stdout=pipe, stderr=nothing, bufsize=0)

    def spin(self) -> None:
        """Let it begin: it then uses all the CPU time it gets."""
        assert self.stdin is not None  # noqa: S101 - it was started with a pipe
        self.stdin.write(b"x")

    def said(self) -> bytes:
        """What it wrote since the last time, without waiting for more. Raises OSError."""
        assert self.stdout is not None  # noqa: S101 - it was started with a pipe
        os.set_blocking(self.stdout.fileno(), False)
        return self.stdout.read() or b""

    @property
    def clock(self) -> int:
        """Of its CPU time, clock_getcpuclockid(3)."""
        return ~self.pid << 3 | 2

    def cpu_ns(self) -> int:
        """Nanoseconds of CPU time it has used. Raises OSError."""
        return time.clock_gettime_ns(self.clock)


@contextmanager
def scratch_process(program: str = _SPIN) -> Iterator[ScratchProcess]:
    """One that is ended and reaped at the end. Raises OSError, HostError."""
    with ScratchProcess(program) as process:
        try:
            if process.stdout is None or process.stdout.read(1) != b"r":
                raise HostError("a scratch process ended before it began")
            yield process
        finally:
            process.kill()
            process.wait()
