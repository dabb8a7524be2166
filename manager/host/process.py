"""QEMU processes: which process runs a domain, its threads, their affinity and their run-queue delay.

Affinity is set with sched_setaffinity(2) on the threads themselves, not through libvirt: it costs microseconds instead
of milliseconds, works while libvirtd is down, and leaves no trace in the domain's XML that a migration would carry to
another host.
"""

from __future__ import annotations

import errno
import os
import re
import select
from dataclasses import dataclass
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host.registry import HostPaths
from manager.model.cpus import CpuSet, parse_cpus
from manager.model.host import VmInstance

# QEMU names its threads when run with debug-threads=on, as libvirt always does (qemu_command.c).
_VCPU_THREAD = re.compile(r"^CPU (\d+)/(KVM|TCG)$")
_IO_THREAD = re.compile(r"^IO iothread(\d+)$")
_MEMS_ALLOWED = re.compile(r"^Mems_allowed_list:\s*(\S+)", re.MULTILINE)
_VHOST_THREAD = "vhost-"
_UUID_OPTION = re.compile(rb"\0-uuid\0([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\0")
_GONE = frozenset({errno.ENODEV, errno.ESRCH, errno.ENOENT})


@dataclass(frozen=True, slots=True)
class QemuThreads:
    """Thread ids of a VM: by number of the vCPU and of the I/O thread, and all others, which are the emulator's.

    Those of vhost, which carry the packets of its network interfaces, are among the emulator's.
    """

    vcpus: tuple[tuple[int, int], ...]
    iothreads: tuple[tuple[int, int], ...]
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
        text = read_small(f"{paths.process(pid)}/stat")
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
    process = _noted_process(paths, libvirt_name)
    if process is None or uuid.encode() not in process[2]:
        return None
    return VmInstance(uuid, libvirt_name, process[0], process[1])


def find_named(paths: HostPaths, libvirt_name: str) -> VmInstance | None:
    """As ``find_instance``, for a domain of which only the name is known: its command line tells the UUID."""
    process = _noted_process(paths, libvirt_name)
    found = _UUID_OPTION.search(process[2]) if process is not None else None
    if process is None or found is None:
        return None
    return VmInstance(found[1].decode(), libvirt_name, process[0], process[1])


def _noted_process(paths: HostPaths, libvirt_name: str) -> tuple[int, int, bytes] | None:
    """Pid, start time and command line of the process in a domain's pid file. Raises HostError."""
    try:
        pid = int(paths.pid_file(libvirt_name).read_bytes())
        command_line = (paths.process(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    except OSError as error:
        raise refusal(f"process of domain {libvirt_name}", error) from error
    ticks = start_ticks(paths, pid)
    return None if ticks is None else (pid, ticks, command_line)


class ExitWatch:
    """Tells whether one process still runs, by a descriptor of it: half a microsecond, not the twenty of its stat."""

    def __init__(self, paths: HostPaths, instance: VmInstance) -> None:
        """Open the descriptor, where the kernel has such (before Linux 5.3 it had not). Raises HostError."""
        self._paths = paths
        self._instance = instance
        self._poll = select.poll()
        try:
            self._fd = os.pidfd_open(instance.pid)
        except OSError:
            self._fd = -1
            return
        try:
            same = start_ticks(paths, instance.pid) == instance.start_ticks
        except HostError:
            self.close()
            raise
        if same:
            self._poll.register(self._fd, select.POLLIN)
        else:  # ``is_alive`` looks again, and finds another process
            self.close()

    @property
    def descriptor(self) -> int:
        """Readable once the process has ended; -1 where the kernel has no such descriptors."""
        return self._fd

    def is_alive(self) -> bool:
        """Whether it runs. Raises HostError when that cannot be known."""
        if self._fd >= 0:
            return not self._poll.poll(0)  # readable once the process has ended, pidfd_open(2)
        return is_alive(self._paths, self._instance)

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_alive(paths: HostPaths, instance: VmInstance) -> bool:
    """Whether that very process still runs. Raises HostError when that cannot be known."""
    return start_ticks(paths, instance.pid) == instance.start_ticks


def thread_count(task: int) -> int:
    """Grows with the number of threads in an open folder /proc/PID/task: its links (proc_task_getattr, fs/proc/base.c).

    Raises HostError.
    """
    try:
        return os.fstat(task).st_nlink
    except OSError as error:
        raise refusal("threads of a process", error) from error


def emulator_threads(task: str, known: frozenset[int]) -> list[int]:
    """Those of the emulator's threads in a folder /proc/PID/task that are not among ``known`` ones of any kind.

    Raises VmVanished when the process is gone, HostError.
    """
    found = ((tid, _comm(task, str(tid))) for tid in _thread_ids(task) if tid not in known)
    return [tid for tid, comm in found if comm and not _VCPU_THREAD.match(comm) and not _IO_THREAD.match(comm)]


def _thread_ids(task: str) -> list[int]:
    try:
        return sorted(map(int, os.listdir(task)))  # noqa: PTH208
    except OSError as error:
        raise refusal(f"threads in {task}", error) from error


def find_threads(paths: HostPaths, pid: int, group_threads: Path | None = None) -> QemuThreads:
    """The threads of a QEMU process, and those of vhost that the kernel runs for it.

    Before Linux 6.4 these are threads of the kernel, in the control group of the thread that opened /dev/vhost-net:
    ``group_threads`` is that group's list of threads, where it is known. Raises VmVanished when the process is gone,
    HostError when its threads cannot be read.
    """
    vcpus: list[tuple[int, int]] = []
    iothreads: list[tuple[int, int]] = []
    emulator: list[int] = []
    task = f"{paths.process(pid)}/task"
    tids = _thread_ids(task)
    for tid in tids:
        comm = _comm(task, str(tid))
        if comm is None:
            continue
        vcpu, iothread = _VCPU_THREAD.match(comm), _IO_THREAD.match(comm)
        if vcpu:
            vcpus.append((int(vcpu.group(1)), tid))
        elif iothread:
            iothreads.append((int(iothread.group(1)), tid))
        else:
            emulator.append(tid)
    if not emulator:
        raise VmVanished(f"process {pid} is gone")
    emulator += _vhost_threads(paths, pid, group_threads, frozenset(tids))
    return QemuThreads(tuple(sorted(vcpus)), tuple(sorted(iothreads)), tuple(emulator))


def _vhost_threads(paths: HostPaths, pid: int, group_threads: Path | None, own: frozenset[int]) -> list[int]:
    if group_threads is None:
        return []
    try:
        tids = [int(line) for line in group_threads.read_text().split()]
    except (OSError, ValueError):  # the group went with its VM, or v2 keeps its threads elsewhere
        return []
    folder = str(paths.processes)
    return [tid for tid in tids if tid not in own and _comm(folder, str(tid)) == f"{_VHOST_THREAD}{pid}"]


def _comm(folder: str, tid: str) -> str | None:
    """Name of a thread, None when it ended meanwhile. Raises HostError."""
    try:
        return read_small(f"{folder}/{tid}/comm").decode(errors="replace").rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise refusal(f"name of thread {tid}", error) from error


def read_small(path: str) -> bytes:
    """A small file of procfs, at half the cost of Path.read_bytes, which counts for each thread of each VM."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def bound_memory_nodes(paths: HostPaths, pid: int) -> frozenset[int]:
    """NUMA nodes that a process may have memory on (Mems_allowed_list, proc_pid_status(5)); empty where unknown."""
    try:
        text = (paths.process(pid) / "status").read_text()
    except OSError:
        return frozenset()
    found = _MEMS_ALLOWED.search(text)
    try:
        return parse_cpus(found.group(1)) if found else frozenset()
    except ValueError:
        return frozenset()


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
