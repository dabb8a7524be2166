"""QEMU processes: which process runs a domain, its threads, their affinity and their run-queue delay.

Affinity is set with sched_setaffinity(2) on the threads themselves, not through libvirt: it costs microseconds instead
of milliseconds, works while libvirtd is down, and leaves no trace in the domain's XML that a migration would carry to
another host.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from manager.errors import HostError, VmVanished
from manager.host.registry import HostPaths
from manager.model.cpus import CpuSet
from manager.model.host import VmInstance

# QEMU names its threads when run with debug-threads=on, as libvirt always does (qemu_command.c).
_VCPU_THREAD = re.compile(r"^CPU (\d+)/(KVM|TCG)$")
_IO_THREAD = re.compile(r"^IO ")
_GONE = frozenset({errno.ENODEV, errno.ESRCH, errno.ENOENT})


@dataclass(frozen=True, slots=True)
class QemuThreads:
    """Thread ids of a QEMU process: by vCPU number, and those of the emulator (all others but I/O threads)."""

    vcpus: tuple[tuple[int, int], ...]
    emulator: tuple[int, ...]


def refusal(action: str, error: OSError) -> HostError:
    """The error for a failed system call: VmVanished when its object is gone, otherwise HostError with the errno."""
    number = error.errno or 0
    kind = VmVanished if number in _GONE else HostError
    return kind(f"{action}: {os.strerror(number)}", number)


def start_ticks(paths: HostPaths, pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat), None when it does not run.

    Raises HostError when that cannot be known, such as for want of file descriptors.
    """
    try:
        text = (paths.process(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise refusal(f"stat of process {pid}", error) from error
    fields = text.rpartition(b")")[2].split()  # the command name before it may hold any byte, parentheses too
    if len(fields) < 20 or fields[0] in {b"Z", b"X"}:
        return None
    return int(fields[19])


def find_instance(paths: HostPaths, uuid: str, libvirt_name: str) -> VmInstance | None:
    """The process that runs a domain, found by libvirt's pid file and confirmed by its command line.

    None when there is none: the domain just stopped, or is not run by libvirt's QEMU driver. Raises HostError when
    that cannot be known.
    """
    try:
        pid = int(paths.pid_file(libvirt_name).read_bytes())
        command_line = (paths.process(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    except OSError as error:
        raise refusal(f"process of domain {libvirt_name}", error) from error
    ticks = start_ticks(paths, pid)
    if ticks is None or uuid.encode() not in command_line:
        return None
    return VmInstance(uuid, libvirt_name, pid, ticks)


def is_alive(paths: HostPaths, instance: VmInstance) -> bool:
    """Whether that very process still runs. Raises HostError when that cannot be known."""
    return start_ticks(paths, instance.pid) == instance.start_ticks


def find_threads(paths: HostPaths, pid: int) -> QemuThreads:
    """The threads of a QEMU process. Raises VmVanished when it is gone, HostError when they cannot be read."""
    vcpus: list[tuple[int, int]] = []
    emulator: list[int] = []
    task = paths.process(pid) / "task"
    try:
        names = sorted((entry.name for entry in task.iterdir()), key=int)
    except OSError as error:
        raise refusal(f"threads of process {pid}", error) from error
    for name in names:
        try:
            comm = (task / name / "comm").read_bytes().decode(errors="replace").rstrip("\n")
        except (FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            continue
        except OSError as error:
            raise refusal(f"name of thread {name}", error) from error
        match = _VCPU_THREAD.match(comm)
        if match:
            vcpus.append((int(match.group(1)), int(name)))
        elif not _IO_THREAD.match(comm):
            emulator.append(int(name))
    if not emulator:
        raise VmVanished(f"process {pid} is gone")
    return QemuThreads(tuple(sorted(vcpus)), tuple(emulator))


def affinity(tid: int) -> CpuSet:
    """pCPUs a thread may run on. Raises VmVanished when it is gone, HostError."""
    try:
        return frozenset(os.sched_getaffinity(tid))
    except OSError as error:
        raise refusal(f"sched_getaffinity of thread {tid}", error) from error


def set_affinity(tid: int, cpus: CpuSet) -> None:
    """Let a thread run on ``cpus`` only.

    Raises VmVanished when it is gone, HostError when the kernel refuses (EINVAL: none of the pCPUs is online or
    inside the thread's cpuset).
    """
    try:
        os.sched_setaffinity(tid, cpus)
    except OSError as error:
        raise refusal(f"sched_setaffinity of thread {tid}", error) from error
