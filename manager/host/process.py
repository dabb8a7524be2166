"""QEMU processes: which process runs a domain, its threads, their affinity and their run-queue delay.

Affinity is set with sched_setaffinity(2) on the threads themselves, not through libvirt: it costs microseconds instead
of milliseconds, works while libvirtd is down, and leaves no trace in the domain's XML that a migration would carry to
another host.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host.files import names_in, number_of, read_small, refusal, refused, text_of
from manager.host.registry import HostPaths
from manager.host.status_files import is_starting
from manager.model.cpus import CpuSet
from manager.model.host import VmInstance

# QEMU names its threads when run with debug-threads=on, as libvirt always does (qemu_command.c).
_VCPU_THREAD = re.compile(r"^CPU (\d+)/(KVM|TCG)$")
_IO_THREAD = re.compile(r"^IO iothread(\d+)$")
_VHOST_THREAD = "vhost-"
_TUN = "/dev/net/tun"
_TAP_NAME = re.compile(r"^iff:\s*(\S+)", re.MULTILINE)
_UUID_OPTION = re.compile(rb"\0-uuid\0([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\0")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QemuThreads:
    """Thread ids of a VM: by number of the vCPU and of the I/O thread, and all others, which are the emulator's.

    Those of vhost, which carry the packets of its network interfaces, are among the emulator's.
    """

    vcpus: tuple[tuple[int, int], ...]
    iothreads: tuple[tuple[int, int], ...]
    emulator: tuple[int, ...]


def start_ticks(paths: HostPaths, pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat), None when it does not run.

    Raises HostError when that cannot be known, such as for want of file descriptors.
    """
    try:
        text = read_small(f"{paths.processes}/{pid}/stat")
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

    ``uuid`` empty: that of the command line. None when there is none: the domain just stopped, or is not run by
    libvirt's QEMU driver. Raises HostError when that cannot be known.
    """
    with refused(f"process of domain {libvirt_name}"):
        try:
            pid = int(paths.pid_file(libvirt_name).read_bytes())
            command_line = (paths.process(pid) / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
    if not uuid and (match := _UUID_OPTION.search(command_line)):
        uuid = match[1].decode()
    ticks = start_ticks(paths, pid) if uuid and uuid.encode() in command_line else None
    return None if ticks is None else VmInstance(uuid, libvirt_name, pid, ticks)


def may_run(paths: HostPaths, instance: VmInstance) -> bool:
    """Whether that very process runs, or that cannot be known."""
    try:
        return is_alive(paths, instance)
    except HostError as error:
        log.warning("domain %s cannot be looked up: %s", instance.libvirt_name, error)
        return True


def find_running(paths: HostPaths, known: Mapping[str, VmInstance]) -> dict[str, VmInstance]:
    """The running domains by UUID without libvirt, by the pid files that its QEMU driver keeps of each, without those
    that it still sets up: for a libvirtd that does not answer.

    Those of ``known`` stay while their process runs, whatever becomes of their files. Blocks on no other process.
    """
    running = {uuid: instance for uuid, instance in known.items() if may_run(paths, instance)}
    names = {instance.libvirt_name for instance in running.values()}
    try:
        new = sorted({file.stem for file in paths.pid_files.glob("*.pid")} - names)
    except OSError as error:
        log.warning("the pid files of domains cannot be listed: %s", error)
        return running
    for name in new:
        try:
            instance = None if is_starting(paths, name) else find_instance(paths, "", name)
        except HostError as error:
            log.warning("domain %s cannot be looked up: %s", name, error)
            continue
        if instance is not None:
            running[instance.uuid] = instance
    return running


class ExitWatch:
    """Whether one process still runs, by a descriptor of it: half a microsecond, not the twenty of its stat.

    ``descriptor`` is readable once the process has ended; -1 where the kernel has no such (before Linux 5.3).
    """

    def __init__(self, paths: HostPaths, instance: VmInstance) -> None:
        """Open the descriptor. Raises HostError."""
        self._paths = paths
        self._instance = instance
        self._poll = select.poll()
        try:
            self.descriptor = os.pidfd_open(instance.pid)
        except OSError:
            self.descriptor = -1
            return
        try:
            same = is_alive(paths, instance)
        except HostError:
            self.close()
            raise
        if same:
            self._poll.register(self.descriptor, select.POLLIN)
        else:  # ``is_alive`` looks again, and finds another process
            self.close()

    def is_alive(self) -> bool:
        """Whether it runs. Raises HostError when that cannot be known."""
        if self.descriptor >= 0:
            return not self._poll.poll(0)  # pidfd_open(2)
        return is_alive(self._paths, self._instance)

    def close(self) -> None:
        """Close the descriptor; may be called twice."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def is_alive(paths: HostPaths, instance: VmInstance) -> bool:
    """Whether that very process still runs. Raises HostError when that cannot be known."""
    return start_ticks(paths, instance.pid) == instance.start_ticks


def thread_count(task: int) -> int:
    """Grows with the number of threads in an open /proc/PID/task: its links (fs/proc/base.c). Raises HostError."""
    with refused("threads of a process"):
        return os.fstat(task).st_nlink


def new_threads(task: str, known: frozenset[int]) -> tuple[list[int], list[int]]:
    """Threads in a folder /proc/PID/task that are not ``known``: the emulator's, and those of vCPUs and I/O.

    Raises VmVanished when the process is gone, HostError.
    """
    emulator: list[int] = []
    others: list[int] = []
    for tid in _thread_ids(task):
        if tid not in known and (name := _comm(task, tid)):
            is_other = _VCPU_THREAD.match(name) or _IO_THREAD.match(name)
            (others if is_other else emulator).append(tid)
    return emulator, others


def _thread_ids(task: str) -> list[int]:
    with refused(f"threads in {task}"):
        return sorted(map(int, os.listdir(task)))  # noqa: PTH208


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
        name = _comm(task, tid)
        if name is None:
            continue
        if vcpu := _VCPU_THREAD.match(name):
            vcpus.append((int(vcpu[1]), tid))
        elif iothread := _IO_THREAD.match(name):
            iothreads.append((int(iothread[1]), tid))
        else:
            emulator.append(tid)
    if not emulator:
        raise VmVanished(f"process {pid} is gone")
    emulator += _vhost_threads(paths, pid, group_threads, frozenset(tids))
    return QemuThreads(tuple(sorted(vcpus)), tuple(sorted(iothreads)), tuple(emulator))


def vhost_threads(paths: HostPaths, pid: int, group_threads: Path | None) -> list[int]:
    """Those of vhost alone; see ``find_threads``. Raises VmVanished, HostError."""
    task = f"{paths.process(pid)}/task"
    tids = _thread_ids(task)
    own = [tid for tid in tids if (_comm(task, tid) or "").startswith(_VHOST_THREAD)]
    return own + _vhost_threads(paths, pid, group_threads, frozenset(tids))


def _vhost_threads(paths: HostPaths, pid: int, group_threads: Path | None, qemu: frozenset[int]) -> list[int]:
    if group_threads is None:
        return []
    try:
        tids = [int(line) for line in group_threads.read_bytes().split()]
    except (OSError, ValueError):  # the group went with its VM, or v2 keeps its threads elsewhere
        return []
    folder = str(paths.processes)
    return [tid for tid in tids if tid not in qemu and _comm(folder, tid) == f"{_VHOST_THREAD}{pid}"]


def _comm(folder: str, tid: int) -> str | None:
    """Name of a thread, None when it ended meanwhile. Raises HostError."""
    try:
        return read_small(f"{folder}/{tid}/comm").decode(errors="replace").rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise refusal(f"name of thread {tid}", error) from error


def taps(paths: HostPaths, pid: int) -> frozenset[int]:
    """Indexes of the taps that a process holds (drivers/net/tun.c, tun_chr_show_fdinfo); none of one that is gone.

    Raises HostError.
    """
    found: set[int] = set()
    folder = paths.process(pid)
    with refused(f"taps of process {pid}"):
        for name in names_in(folder / "fd"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it was closed meanwhile
                if str((folder / "fd" / name).readlink()) != _TUN:
                    continue
                match = _TAP_NAME.search(text_of(folder / "fdinfo" / name) or "")
                index = _index_of(paths, match[1]) if match else None
                found |= set() if index is None else {index}
    return frozenset(found)


def _index_of(paths: HostPaths, interface: str) -> int | None:
    """None for one of another network namespace."""
    with contextlib.suppress(ValueError):
        return number_of(paths.interfaces / interface / "ifindex")
    return None


def affinity(tid: int) -> CpuSet:
    """pCPUs a thread may run on. Raises VmVanished when it is gone, HostError."""
    try:
        return frozenset(os.sched_getaffinity(tid))
    except OSError as error:
        raise refusal(f"sched_getaffinity of thread {tid}", error) from error


def has_affinity(tid: int, cpus: CpuSet) -> bool:
    """Whether a thread is there and may run on just these pCPUs. Raises HostError."""
    try:
        return affinity(tid) == cpus
    except VmVanished:
        return False


def set_affinity(tid: int, cpus: CpuSet) -> None:
    """Let a thread run on ``cpus`` only.

    Raises VmVanished when it is gone, HostError when the kernel refuses (EINVAL: none of the pCPUs is online or
    inside the thread's cpuset).
    """
    with refused(f"sched_setaffinity of thread {tid}"):
        os.sched_setaffinity(tid, cpus)
