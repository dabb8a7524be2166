"""Everything held open for one running VM, so that a tick costs a few reads and no look-up.

The descriptors name the very cgroup and threads that were found: when the VM stops and another takes its name or its
thread ids, they answer ENODEV or ESRCH instead of meaning the other one.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host import process
from manager.host.cgroup import VmCgroup
from manager.host.registry import USER_HZ_NS, HostPaths
from manager.model.cpus import CpuSet
from manager.model.host import KnobKey, KnobValue, VcpuState, VmInstance, VmState
from manager.model.records import Knob


class VmHandle:
    """Reads and writes the settings of one VM instance. Not thread-safe: it belongs to the control loop."""

    def __init__(self, paths: HostPaths, instance: VmInstance, cgroup: VmCgroup) -> None:
        """Open the VM's files. Raises VmVanished when it is gone, HostError when they cannot be opened."""
        self.instance = instance
        self._paths = paths
        self._usage = cgroup.usage
        self._weight_fd = -1
        self._usage_fd = -1
        self._delay_fds: dict[int, int] = {}
        self._threads = process.QemuThreads((), ())
        try:
            if cgroup.weight_file:
                self._weight_fd = _open(cgroup.weight_file, os.O_RDWR)
            self._usage_fd = _open(cgroup.usage_file or paths.process(instance.pid) / "stat", os.O_RDONLY)
            self.find_threads()
            if not process.is_alive(paths, instance):
                raise VmVanished(f"process {instance.pid} is gone")
        except BaseException:  # whatever ends it, no descriptor may stay open
            self.close()
            raise

    def find_threads(self) -> None:
        """Look at the process's threads again: vCPUs are plugged and unplugged. Raises VmVanished, HostError."""
        threads = process.find_threads(self._paths, self.instance.pid)
        if threads.vcpus == self._threads.vcpus and self._delay_fds:
            self._threads = threads
            return
        self._close_delays()
        self._threads = threads
        for _, tid in threads.vcpus:
            path = self._paths.process(self.instance.pid) / "task" / str(tid) / "schedstat"
            if path.exists():  # a kernel without CONFIG_SCHED_INFO has none
                self._delay_fds[tid] = _open(path, os.O_RDONLY)

    def read(self) -> VmState:
        """All settings and counters of the VM now. Raises VmVanished, HostError."""
        try:
            try:
                return self._state()
            except VmVanished:
                if not process.is_alive(self._paths, self.instance):
                    raise
                self.find_threads()  # a vCPU was unplugged
                return self._state()
        except (ValueError, IndexError) as error:  # never seen from a kernel, but one VM must not stop the others
            raise HostError(f"{self.instance.libvirt_name}: unreadable counters: {error}", errno.EIO) from error

    def _state(self) -> VmState:
        vcpus = tuple(
            VcpuState(index, process.affinity(tid), self._delay_ns(tid)) for index, tid in self._threads.vcpus
        )
        return VmState(
            self.instance,
            cpu_ns=self._cpu_ns(),
            weight=int(_read(self._weight_fd)) if self._weight_fd >= 0 else None,
            vcpus=vcpus,
            emulator_cpus=process.affinity(self.instance.pid),
        )

    def write(self, key: KnobKey, value: KnobValue) -> KnobValue:
        """Set one knob and return what it then holds. Raises VmVanished, HostError."""
        if key.knob is Knob.WEIGHT:
            if isinstance(value, frozenset) or self._weight_fd < 0:
                raise HostError(f"{self.instance.libvirt_name} has no CPU cgroup of its own", errno.ENOENT)
            _write(self._weight_fd, str(value).encode())
            return int(_read(self._weight_fd))
        if not isinstance(value, frozenset):
            raise HostError(f"{key.knob} takes pCPUs, not {value!r}", errno.EINVAL)
        if not process.is_alive(self._paths, self.instance):  # thread ids are recycled
            raise VmVanished(f"process {self.instance.pid} is gone")
        if key.knob is Knob.VCPU_PIN:
            tid = dict(self._threads.vcpus).get(key.index)
            if tid is None:
                raise VmVanished(f"{self.instance.libvirt_name} has no vCPU {key.index}")
            process.set_affinity(tid, value)
            return process.affinity(tid)
        return self._pin_emulator(value)

    def _pin_emulator(self, cpus: CpuSet) -> CpuSet:
        threads = process.find_threads(self._paths, self.instance.pid)
        process.set_affinity(self.instance.pid, cpus)  # first: threads it starts from now on inherit
        for tid in threads.emulator:
            try:
                process.set_affinity(tid, cpus)
            except VmVanished:  # QEMU's worker threads come and go
                continue
        return process.affinity(self.instance.pid)

    def _cpu_ns(self) -> int:
        text = _read(self._usage_fd)
        if self._usage is None:  # utime and stime of proc_pid_stat(5)
            fields = text.rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) * USER_HZ_NS
        return (
            int(text.partition(self._usage.key)[2].split(None, 1)[0] if self._usage.key else text) * self._usage.unit_ns
        )

    def _delay_ns(self, tid: int) -> int | None:
        """Second field of /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst)."""
        descriptor = self._delay_fds.get(tid)
        return None if descriptor is None else int(_read(descriptor).split()[1])

    def close(self) -> None:
        """Close all descriptors; may be called twice."""
        for name in ("_weight_fd", "_usage_fd"):
            descriptor: int = getattr(self, name)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)
        self._close_delays()

    def _close_delays(self) -> None:
        for descriptor in self._delay_fds.values():
            os.close(descriptor)
        self._delay_fds = {}


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise process.refusal(f"open {path}", error) from error


def _read(descriptor: int) -> bytes:
    try:
        text = os.pread(descriptor, 4096, 0)
    except OSError as error:
        raise process.refusal("read", error) from error
    if not text:
        raise HostError("read: the kernel returned nothing", errno.EIO)
    return text


def _write(descriptor: int, text: bytes) -> None:
    try:
        os.pwrite(descriptor, text, 0)
    except OSError as error:
        raise process.refusal(f"write {text.decode()}", error) from error
