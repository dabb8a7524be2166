"""Memory that all VMs together are short of: a limit for the group above them, and a slow disk to swap to."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.lab.commands import LabError, Runner, run
from deploy.lab.slow_disk import SlowDisk

STEP_MIB = 8
PATIENCE_S = 120.0
_MIB = 1 << 20
_PAUSE_S = 0.2
_FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "-1"), 2: ("memory.max", "memory.current", "max")}
"""Of each version: the limit, what is used, and no limit."""


@contextmanager
def swap_on(disk: SlowDisk, size_mib: int, runner: Runner = run) -> Iterator[None]:
    """A file of the disk is swap while the block runs; nobody may need what is on it at the end. Raises LabError."""
    file = disk.image("swap", size_mib)
    file.chmod(0o600)
    runner(["mkswap", "-q", str(file)])
    runner(["swapon", str(file)])
    try:
        yield
    finally:
        runner(["swapoff", str(file)])


@contextmanager
def limited_together(pid: int, most_mib: int, root: Path = Path("/")) -> Iterator[Path]:
    """The group above that of a VM, by its process, has no more than this while the block runs; gives the group.

    It is lowered by ``STEP_MIB``: what is swapped out has to be written first. Raises LabError.
    """
    version, group = group_above(pid, root)
    limit, usage, none = _FILES[version]
    try:
        used_mib = int((group / usage).read_text()) // _MIB
        deadline_s = time.monotonic() + PATIENCE_S
        for mib in (*range(used_mib, most_mib, -STEP_MIB), most_mib):
            _lower(group / limit, mib, deadline_s)
        yield group
    finally:
        (group / limit).write_text(none)


def _lower(file: Path, mib: int, deadline_s: float) -> None:
    """v1 refuses a limit (EBUSY) while the swap does not take pages as fast as the kernel wants."""
    while True:
        try:
            file.write_text(str(mib * _MIB))
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline_s:
                raise LabError(f"{file}: not lowered to {mib} MiB: {error}") from error
            time.sleep(_PAUSE_S)
        else:
            return


def group_above(pid: int, root: Path = Path("/")) -> tuple[int, Path]:
    """The version of cgroups that has the memory controller, and the outermost group below its root that a process is
    in: that of all VMs. Raises LabError where there is none.
    """
    for line in (root / f"proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        outermost = path.strip("/").partition("/")[0]
        if "memory" in controllers.split(","):
            version, group = 1, root / "sys/fs/cgroup/memory" / outermost
        elif not controllers:
            version, group = 2, root / "sys/fs/cgroup" / outermost
        else:
            continue
        if outermost and (group / _FILES[version][0]).exists():
            return version, group
    raise LabError(f"process {pid} is in no group above which memory can be limited")
