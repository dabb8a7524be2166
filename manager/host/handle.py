"""Everything held open for one running VM, so that a tick costs a few reads and no look-up.

The descriptors name the very cgroup and threads that were found: when the VM stops and another takes its name or its
thread ids, they answer ENODEV or ESRCH instead of meaning the other one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host import process
from manager.host.cgroup import CpuGroup, VmCgroup, memory_nodes
from manager.host.files import open_file, read
from manager.host.knob_files import VmTarget, checked_cpus
from manager.host.registry import USER_HZ_NS, HostPaths
from manager.model.cpus import CpuSet
from manager.model.host import VcpuState, VmInstance, VmState
from manager.model.knobs import Family, Knob, KnobKey, KnobValue


class VmHandle:
    """Reads and writes the settings of one VM instance. Not thread-safe: it belongs to the control loop."""

    def __init__(self, paths: HostPaths, instance: VmInstance, cgroup: VmCgroup) -> None:
        """Open the VM's files. Raises VmVanished when it is gone, HostError when they cannot be opened."""
        self.instance = instance
        self._paths = paths
        self._cgroup = cgroup
        self._task = f"{paths.process(instance.pid)}/task"
        self._group: CpuGroup | None = None
        self._schedstat_fds: dict[int, int] = {}
        self._threads = process.QemuThreads((), (), ())
        self._thread_count = 0
        self._changed = False
        self._nodes: frozenset[int] = frozenset()
        with contextlib.ExitStack() as opened:  # whatever ends it, no descriptor may stay open
            if cgroup.cpu and cgroup.cpu_folder:
                self._group = CpuGroup(cgroup.cpu, cgroup.cpu_folder)
                opened.callback(self._group.close)
            self._usage_fd = open_file(cgroup.usage_file or paths.process(instance.pid) / "stat", os.O_RDONLY)
            opened.callback(os.close, self._usage_fd)
            self.exit = process.ExitWatch(paths, instance)
            opened.callback(self.exit.close)
            self._task_fd = open_file(Path(self._task), os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, self._task_fd)
            opened.callback(self._close_schedstats)
            self.find_threads()
            self.require_alive()
            self._opened = opened.pop_all()

    def require_alive(self) -> None:
        """Raises VmVanished unless the VM's very process still runs, HostError when that cannot be known."""
        if not self.exit.is_alive():
            raise VmVanished(f"process {self.instance.pid} is gone")

    @property
    def target(self) -> VmTarget:
        """What knobs of other families are read and written by."""
        return VmTarget(self.instance.uuid, self._cgroup.cpu_folder, self._threads.vcpus)

    @property
    def threads(self) -> frozenset[int]:
        """Ids of all threads as last listed, those of vhost included."""
        return frozenset((*self._threads.emulator, *self._tids()))

    def _tids(self) -> list[int]:
        """Those of vCPUs and I/O threads."""
        return [tid for _, tid in (*self._threads.vcpus, *self._threads.iothreads)]

    def find_threads(self) -> None:
        """Look at the process's threads again: vCPUs are plugged and unplugged. Raises VmVanished, HostError."""
        self._thread_count = process.thread_count(self._task_fd)  # before: none may slip through
        folder, cpu, before = self._cgroup.cpu_folder, self._cgroup.cpu, self._threads.vcpus
        group_threads = folder / "emulator" / cpu.threads_file if folder and cpu else None
        threads = process.find_threads(self._paths, self.instance.pid, group_threads)
        self._nodes = memory_nodes(self._paths, self.instance.pid, self._cgroup.resident_file)
        if threads.vcpus != before or not self._schedstat_fds:
            self._close_schedstats()
        self._threads = threads
        for _, tid in threads.vcpus if not self._schedstat_fds else ():
            path = Path(self._task) / str(tid) / "schedstat"
            if path.exists():  # a kernel without CONFIG_SCHED_INFO has none
                self._schedstat_fds[tid] = open_file(path, os.O_RDONLY)

    def read(self) -> VmState:
        """All settings and counters of the VM now. Raises VmVanished, HostError."""
        try:
            try:
                self._find_plugged()
                return self._state()
            except VmVanished:
                self.require_alive()
                self.find_threads()  # a vCPU was unplugged
                return self._state()
        except (ValueError, IndexError) as error:  # never seen from a kernel, but one VM must not stop the others
            raise HostError(f"{self.instance.libvirt_name}: unreadable counters: {error}", errno.EIO) from error

    def _find_plugged(self) -> None:
        """Look at the threads again if their number had changed at the last reading: no event reports a vCPU.

        Not at once, because libvirt gives a vCPU that it plugs an affinity soon after its thread was started.
        """
        if self._changed:
            self.require_alive()  # a zombie has one thread left
            self.find_threads()
        self._changed = process.thread_count(self._task_fd) != self._thread_count

    def _state(self) -> VmState:
        vcpus = tuple(self._vcpus())
        group = self._group.read() if self._group else None
        return VmState(
            self.instance,
            cpu_ns=self._cpu_ns(),
            weight=group.weight if group else None,
            vcpus=vcpus,
            emulator_cpus=process.affinity(self.instance.pid),
            iothread_cpus=tuple((number, process.affinity(tid)) for number, tid in self._threads.iothreads),
            idle=group.idle if group else None,
            quota=group.quota if group else None,
            memory_nodes=self._nodes,
            in_scope=self._cgroup.in_scope,
        )

    def write(self, key: KnobKey, value: KnobValue) -> KnobValue:
        """Set one knob and return what it then holds. Raises VmVanished, HostError."""
        if key.knob.spec.family is Family.CPU_GROUP:
            if self._group is None or not isinstance(value, int):
                raise HostError(f"{self.instance.libvirt_name} has no CPU cgroup of its own", errno.ENOENT)
            try:
                return self._group.write(key.knob, value)
            except ValueError as error:  # as in ``read``
                raise HostError(f"{self.instance.libvirt_name}: unreadable {key.knob}: {error}", errno.EIO) from error
        wanted = checked_cpus(key, value)
        self.require_alive()  # thread ids are recycled
        if key.knob is Knob.EMULATOR_PIN:
            return self._pin_emulator(wanted)
        threads = self._threads.vcpus if key.knob is Knob.VCPU_PIN else self._threads.iothreads
        tid = dict(threads).get(key.index)
        if tid is None:
            raise VmVanished(f"{self.instance.libvirt_name} has no thread for {key.knob} {key.index}")
        process.set_affinity(tid, wanted)
        return process.affinity(tid)

    def _pin_emulator(self, wanted: CpuSet) -> CpuSet:
        """The main thread comes after those it started: ``read`` looks at it, so a pin that failed is made again."""
        main = self.instance.pid
        before = set(self._threads.emulator) - {main}
        self._pin_others(before, wanted)
        process.set_affinity(main, wanted)  # threads it starts from now on inherit
        known = frozenset((*self._tids(), *before, main))
        self._pin_others(process.emulator_threads(self._task, known), wanted)
        return process.affinity(main)

    @staticmethod
    def _pin_others(tids: Iterable[int], wanted: CpuSet) -> None:
        failure: HostError | None = None
        for tid in sorted(tids):
            try:
                process.set_affinity(tid, wanted)
            except VmVanished:  # QEMU's worker threads come and go
                continue
            except HostError as error:
                # A thread that the kernel lets nobody move (PF_NO_SETAFFINITY), as were the workers of io_uring; if
                # it is the pCPUs, the main thread is refused them too.
                if error.errno != errno.EINVAL:
                    failure = failure or error
        if failure is not None:
            raise failure

    def _cpu_ns(self) -> int:
        usage = self._cgroup.usage
        if usage is None:  # utime and stime of proc_pid_stat(5)
            fields = read(self._usage_fd).rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) * USER_HZ_NS
        text = read(self._usage_fd)
        return int(text.partition(usage.key)[2].split(None, 1)[0] if usage.key else text) * usage.unit_ns

    def _vcpus(self) -> Iterator[VcpuState]:
        """With run-queue delay and run time in nanoseconds (Documentation/scheduler/sched-stats.rst)."""
        for index, tid in self._threads.vcpus:
            descriptor = self._schedstat_fds.get(tid)
            if descriptor is None:
                yield VcpuState(index, process.affinity(tid))
                continue
            run_ns, delay_ns, *_ = read(descriptor).split()
            yield VcpuState(index, process.affinity(tid), int(delay_ns), int(run_ns))

    def close(self) -> None:
        """Close all descriptors; may be called twice."""
        self._opened.close()

    def _close_schedstats(self) -> None:
        while self._schedstat_fds:
            os.close(self._schedstat_fds.popitem()[1])
