"""Settings of QEMU processes (groups and threads) and of interfaces, read without any of Equipoise's own code.

Taken before Equipoise starts and after it has stopped, they show whether it left everything as it was.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from deploy.lab.commands import run

_CPU_FILES = ("cpu.shares", "cpu.weight", "cpu.idle", "cpu.cfs_quota_us", "cpu.max", "cpu.rt_runtime_us")
_MEMORY_FILES = ("memory.low", "memory.high", "memory.soft_limit_in_bytes", "memory.swappiness")
_DISK_FILES = (
    *("io.weight", "io.bfq.weight", "blkio.bfq.weight", "io.max"),
    *("blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device"),
)
_GROUP_FILES = (*_CPU_FILES, *_MEMORY_FILES, *_DISK_FILES)
_CONTROLLERS = frozenset({"cpu", "memory", "blkio"})
_SLICE = re.compile(r"^(se\.)?slice\b")
_WORKER = re.compile(r"^(worker|call_rcu)")  # QEMU's helpers come and go


def qemu_pid(name: str) -> int:
    """Process of a running domain. Raises OSError when it does not run."""
    return int(Path(f"/run/libvirt/qemu/{name}.pid").read_text())


def settings_of(name: str, files: Sequence[str] = _CPU_FILES) -> dict[str, str]:
    """Settings of the VM's cgroups; affinity, policy and slice of each lasting thread; as text by what they are."""
    pid = qemu_pid(name)
    found = {}
    for folder in _group_folders(pid):
        for file in files:
            if (folder / file).exists():
                found[f"{name}: {folder / file}"] = (folder / file).read_text().strip()
    for thread in sorted(Path(f"/proc/{pid}/task").iterdir()):
        title = (thread / "comm").read_text().strip()
        if not _WORKER.match(title):
            cpus = ",".join(map(str, sorted(os.sched_getaffinity(int(thread.name)))))
            found[f"{name}: affinity of thread {thread.name} ({title})"] = cpus
            policy = os.sched_getscheduler(int(thread.name)), os.getpriority(os.PRIO_PROCESS, int(thread.name))
            found[f"{name}: policy and nice value of thread {thread.name} ({title})"] = f"{policy[0]}, {policy[1]}"
            shown = (thread / "sched").read_text().splitlines() if (thread / "sched").exists() else ()
            for line in filter(_SLICE.match, shown):
                found[f"{name}: slice of thread {thread.name} ({title})"] = line.rpartition(":")[2].strip()
    return found


def settings_of_all(names: Iterable[str]) -> dict[str, str]:
    """The settings of several VMs."""
    return {key: value for name in names for key, value in settings_of(name).items()}


def all_settings(names: Iterable[str]) -> dict[str, str]:
    """Those of memory and disks besides, and the queueing disciplines of the host's interfaces."""
    return {key: value for name in names for key, value in settings_of(name, _GROUP_FILES).items()} | _qdiscs()


def _qdiscs() -> dict[str, str]:
    """Those at the roots, by interface."""
    lines = (line.split() for line in run(["tc", "qdisc", "show"]).splitlines() if " root " in f"{line} ")
    return {f"qdisc of {words[4]}": f"{words[1]} {words[2]}" for words in lines}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What is not as it was, in words."""
    return [
        f"{key}: was {before.get(key, 'absent')}, is {after.get(key, 'absent')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _group_folders(pid: int) -> list[Path]:
    """Folders, in all cgroup hierarchies that have such settings, of the group that holds all of a VM's threads."""
    folders = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        for group_line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, group = group_line.split(":", 2)
            named = _CONTROLLERS.intersection(controllers.split(","), options.split(","))
            v1 = kind == "cgroup" and bool(named)
            v2 = kind == "cgroup2" and controllers == ""
            if (v1 or v2) and "qemu" in group:
                folders.append(Path(point) / re.sub(r"(/libvirt)?(/emulator|/vcpu\d+)?$", "", group).lstrip("/"))
    return folders
