"""Everything held open for one running VM, so that a tick costs a few reads and no look-up.

The descriptors name the very cgroup and threads that were found: when the VM stops and another takes its name or its
thread ids, they answer ENODEV or ESRCH instead of meaning the other one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host import batch_group, process
from manager.host.cgroup import CpuGroup, GroupState, VmCgroup, emulator_threads, memory_nodes
from manager.host.files import LONG, SHORT, number_in, open_file, read, refusal
from manager.host.knob_files import VmTarget, checked_cpus, checked_number
from manager.host.registry import CGROUP_V1, USER_HZ_NS, HostPaths
from manager.host.same_as_before import CpuTime, SameAsBefore
from manager.host.thread_times import ThreadTimes, VmTimes
from manager.host.write_watch import WriteWatch
from manager.model.cpus import CpuSet
from manager.model.host import VcpuState, VmInstance, VmState
from manager.model.knob_spec import Family, KnobValue
from manager.model.knobs import INSIDE, OUTSIDE, Knob, KnobKey

_NO_GROUP = GroupState(None, None, None)
PINS_EVERY = 5
"""Affinities are read at every so many readings, and when there are other threads or pCPUs, or one was written."""
SETTLES_S = 10.0
"""So long libvirt may take to put a vCPU that it plugs into its group and give it an affinity; no event reports it."""
_SCHEDSTAT_BYTES = 64
"""Three numbers of 20 digits at most."""


class VmHandle:
    """Reads and writes the settings of one VM instance. Not thread-safe: it belongs to the control loop."""

    def __init__(
        self,
        paths: HostPaths,
        instance: VmInstance,
        cgroup: VmCgroup,
        watch: WriteWatch | None = None,
        times: ThreadTimes | None = None,
    ) -> None:
        """Open the VM's files; for ``watch`` see ``CpuGroup``. ``times``: by which threads are read as far as it goes.

        Raises VmVanished when it is gone, HostError when they cannot be opened.
        """
        self.instance = instance
        self._paths = paths
        self._cgroup = cgroup
        self._watch = watch
        self._in_scope = cgroup.in_scope
        self._task = f"{paths.process(instance.pid)}/task"
        self._group: CpuGroup | None = None
        self._schedstat_fds: dict[int, int] = {}
        self._threads = process.QemuThreads((), (), ())
        self._group_threads: Path | None = None
        self._vcpus: tuple[tuple[int, int, int | None], ...] = ()  # each with its schedstat's descriptor
        self._times = VmTimes(times) if times is not None else None
        self._vcpu_indexes: tuple[int, ...] = ()
        self._vcpu_cpus: tuple[CpuSet, ...] = ()
        self._thread_count = 0
        self._changed = False
        self._settled_s = 0.0  # by the monotonic clock
        self._nodes: frozenset[int] = frozenset()
        self._cpus: dict[int, CpuSet] = {}  # as last read, by thread
        self._cpus_known = False  # those of all threads
        self._iothread_cpus: tuple[tuple[int, CpuSet], ...] = ()
        self._pins_unread = instance.pid % PINS_EVERY  # not those of all VMs at once
        self._known: Mapping[KnobKey, KnobValue] | None = None  # all that was read last, None once any is another
        self._known_group = _NO_GROUP
        self._used_outside_ns = _used_outside_ns(cgroup)
        self.same = SameAsBefore()
        self._place: int | None = None
        with contextlib.ExitStack() as opened:  # whatever ends it, no descriptor may stay open
            if cgroup.cpu and cgroup.cpu_folder:
                self._group = CpuGroup(cgroup.cpu, cgroup.cpu_folder, watch)
                opened.callback(self._group.close)
            self._usage_fd = open_file(cgroup.usage_file or paths.process(instance.pid) / "stat", os.O_RDONLY)
            opened.callback(os.close, self._usage_fd)
            usage = cgroup.usage
            plain_fd = self._usage_fd if usage is not None and not usage.key else None
            self._cpu_time = CpuTime(self._cpu_ns, plain_fd, usage.unit_ns if usage else 1, self._used_outside_ns)
            self.exit = process.ExitWatch(paths, instance)
            opened.callback(self.exit.close)
            self._task_fd = open_file(Path(self._task), os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, self._task_fd)
            opened.callback(self._close_schedstats)
            if self._times is not None:
                opened.callback(self._times.close)
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
        group = self._cgroup
        folders = (group.memory_folder, group.disk_folder)
        return VmTarget(self.instance.uuid, group.cpu_folder, self._threads.vcpus, *folders)

    @property
    def threads(self) -> frozenset[int]:
        """Ids of all threads as last listed, those of vhost included."""
        return frozenset((*self._threads.emulator, *self._tids()))

    def _tids(self) -> list[int]:
        """Those of vCPUs and I/O threads."""
        return [tid for _, tid in (*self._threads.vcpus, *self._threads.iothreads)]

    def find_threads(self, *, afresh: bool = True) -> None:
        """Look at the process's threads again: vCPUs are plugged and unplugged. Raises VmVanished, HostError.

        Unless ``afresh``, what was read of them holds where they are the same.
        """
        self._thread_count = process.thread_count(self._task_fd)  # before: none may slip through
        folder, cpu, before = self._cgroup.cpu_folder, self._cgroup.cpu, self._threads.vcpus
        if self._group_threads is None and folder and cpu:
            self._group_threads = emulator_threads(folder, cpu)
        threads = process.find_threads(self._paths, self.instance.pid, self._group_threads)
        nodes = memory_nodes(self._paths, self.instance.pid, self._cgroup.resident_file)
        place = batch_group.place(folder, cpu)
        others = [self.instance.pid, *(tid for _, tid in threads.iothreads)]
        held = self._times is None or self._times.holds([tid for _, tid in threads.vcpus], others)
        if held and not afresh and (threads, nodes, place) == (self._threads, self._nodes, self._place):
            return
        self._nodes, self._place = nodes, place
        if threads.vcpus != before or not self._schedstat_fds:
            self._close_schedstats()
        if before and threads.vcpus != before:
            self._settled_s = time.monotonic() + SETTLES_S
        self._threads = threads
        self._cpus.clear()
        self._cpus_known = False
        self._known = None
        self.same.end()
        for _, tid in threads.vcpus if not self._schedstat_fds else ():
            path = Path(self._task) / str(tid) / "schedstat"
            if path.exists():  # a kernel without CONFIG_SCHED_INFO has none
                self._schedstat_fds[tid] = open_file(path, os.O_RDONLY)
        self._vcpus = tuple((index, tid, self._schedstat_fds.get(tid)) for index, tid in threads.vcpus)
        self._vcpu_indexes = tuple(index for index, _ in threads.vcpus)
        if self._times is not None:
            self._times.hold([tid for _, tid in threads.vcpus], others)

    def read(self, afresh: bool = True) -> VmState:
        """All settings and counters of the VM now; for ``afresh`` see ``HostPort``. Raises VmVanished, HostError."""
        spared = self.same.end()
        try:
            try:
                if spared and self._group:
                    self._group.spare(spared)
                self._pins_unread = 0 if afresh else (self._pins_unread + 1) % PINS_EVERY
                if afresh and self._watch is not None:
                    self._watch.look()
                if self._changed:
                    self._find_plugged()
                return self._state(afresh)
            except VmVanished:
                self.require_alive()
                self.find_threads()  # a vCPU was unplugged
                return self._state(afresh)
        except (ValueError, IndexError) as error:  # never seen from a kernel, but one VM must not stop the others
            raise HostError(f"{self.instance.libvirt_name}: unreadable counters: {error}", errno.EIO) from error

    def waits(self) -> tuple[int, ...]:
        """Run-queue delay of each vCPU in nanoseconds, as in ``read``; none when one of them is gone."""
        try:
            return tuple([int(os.pread(fd, _SCHEDSTAT_BYTES, 0).split()[1]) for fd in self._schedstat_fds.values()])
        except (OSError, ValueError, IndexError):  # the next tick finds out what became of it
            return ()

    @property
    def vcpu_places(self) -> range:
        """Where ``times`` have its vCPUs; empty where they do not."""
        return range(0) if self._times is None else self._times.vcpu_places

    def _find_plugged(self) -> None:
        """Look at the threads again after their number had changed at the last reading, and until they have settled.

        Not at once, because libvirt mostly has grouped a vCPU that it plugs soon after its thread was started.
        """
        self.require_alive()  # a zombie has one thread left
        self.find_threads()

    def _state(self, afresh: bool) -> VmState:
        """With run-queue delay and run time in nanoseconds (Documentation/scheduler/sched-stats.rst).

        All in one, by position, and with few objects: for hundreds of VMs in each tick, calls cost more than the
        kernel's part. Raises VmVanished, HostError, ValueError, IndexError.
        """
        group = self._group.read() if self._group else _NO_GROUP
        vcpus, by_times = None, True
        if self._times is not None and self._cpus_known and not afresh:
            vcpus = self._times.states(self._vcpu_indexes, self._vcpu_cpus)
        if vcpus is None:
            vcpus, by_times = self._read_threads(), False
        if group is not self._known_group:
            self._known, self._known_group = None, group
        rest = (self._cpus[self.instance.pid], self._iothread_cpus, group.idle, group.quota, self._nodes)
        state = VmState(
            self.instance, self._cpu_ns(), group.weight, vcpus, *rest, self._in_scope, self._place, self._known
        )
        if self._known is None:
            self._known = state.knobs()
        elif by_times and self._times is not None and self._watch is not None and self._group is not None:
            spared = self._group.spared
            if spared:
                self.same.begin(state, spared, self._watch.total, self._times, self._cpu_time)
        return state

    def _read_threads(self) -> tuple[VcpuState, ...]:
        """By their files. Raises VmVanished, HostError, ValueError."""
        vcpus: list[VcpuState] = []
        if self._times is not None:
            self._times.settle()
            self._cpus_known, self._pins_unread = False, 0
        try:
            known = os.fstat(self._task_fd).st_nlink == self._thread_count  # as process.thread_count
            self._changed = not known or (self._settled_s > 0.0 and time.monotonic() < self._settled_s)
            if not (self._cpus_known and self._pins_unread):
                self._read_affinities()
            cpus = self._cpus
            for index, tid, schedstat_fd in self._vcpus:
                if schedstat_fd is None:
                    vcpus.append(VcpuState(index, cpus[tid]))
                else:
                    run_ns, delay_ns, _ = os.pread(schedstat_fd, SHORT, 0).split()
                    vcpus.append(VcpuState(index, cpus[tid], int(delay_ns), int(run_ns)))
        except OSError as error:
            raise refusal(f"threads of {self.instance.libvirt_name}", error) from error
        self._vcpu_cpus = tuple([vcpu.cpus for vcpu in vcpus])
        return tuple(vcpus)

    def _read_affinities(self) -> None:
        """Those of all threads that are looked at. Raises OSError."""
        for _, tid in self._threads.vcpus:
            self._affinity(tid)
        self._affinity(self.instance.pid)
        self._iothread_cpus = tuple([(number, self._affinity(tid)) for number, tid in self._threads.iothreads])
        self._cpus_known = True

    def _affinity(self, tid: int) -> CpuSet:
        """The very set that was read before if it is the same, which makes comparing it cheap. Raises OSError."""
        before = self._cpus.get(tid)
        if before is not None and (self._pins_unread or os.sched_getaffinity(tid) == before):
            return before
        cpus = os.sched_getaffinity(tid)
        self._cpus[tid] = found = frozenset(cpus)
        self._known = None
        return found

    def write(self, key: KnobKey, value: KnobValue) -> KnobValue:
        """Set one knob and return what it then holds. Raises VmVanished, HostError."""
        self.same.end()
        if key.knob.spec.family is Family.CPU_GROUP:
            if self._group is None or not isinstance(value, int):
                raise HostError(f"{self.instance.libvirt_name} has no CPU cgroup of its own", errno.ENOENT)
            try:
                return self._group.write(key.knob, value)
            except ValueError as error:  # as in ``read``
                raise HostError(f"{self.instance.libvirt_name}: unreadable {key.knob}: {error}", errno.EIO) from error
        if key.knob is Knob.BATCH_GROUP:
            return self._move(checked_number(key, value) == INSIDE)
        wanted = checked_cpus(key, value)
        self.require_alive()  # thread ids are recycled
        if key.knob is Knob.EMULATOR_PIN:
            return self._pin_emulator(key, wanted)
        threads = self._threads.vcpus if key.knob is Knob.VCPU_PIN else self._threads.iothreads
        tid = dict(threads).get(key.index)
        if tid is None:
            raise VmVanished(f"{self.instance.libvirt_name} has no thread for {key.knob} {key.index}")
        self._require_unchanged(key, tid)
        process.set_affinity(tid, wanted)
        return process.affinity(tid)

    def _require_unchanged(self, key: KnobKey, tid: int) -> None:
        """It may be some readings ago that the pin was read. Raises HostError if another tool set it since."""
        before = self._cpus.pop(tid, None)
        self._cpus_known = False
        if before is not None and before != process.affinity(tid):
            raise HostError(f"{self.instance.libvirt_name}: {key.knob} was changed meanwhile", errno.EAGAIN)

    def _move(self, inside: bool) -> int:
        """Into the batch group or out of it. The handle must not be used any more: its files are of the old group."""
        folder, cpu = self._cgroup.cpu_folder, self._cgroup.cpu
        if folder is None or cpu is not CGROUP_V1 or self._place is None:
            raise HostError(f"{self.instance.libvirt_name} cannot be moved while it runs", errno.EOPNOTSUPP)
        self.require_alive()
        batch_group.move(folder, inside)
        return INSIDE if inside else OUTSIDE

    def _pin_emulator(self, key: KnobKey, wanted: CpuSet) -> CpuSet:
        """The main thread comes after those it started: ``read`` looks at it, so a pin that failed is made again.

        vCPUs that were plugged since the threads were listed and still have its pin go with it. Nobody knows of them
        yet, and once it has gone back nobody could tell that they have it from us.
        """
        main = self.instance.pid
        self._require_unchanged(key, main)
        left = process.affinity(main)
        before = set(self._threads.emulator) - {main}
        self._pin_others(before, wanted)
        process.set_affinity(main, wanted)  # threads it starts from now on inherit
        known = frozenset((*self._tids(), *before, main))
        emulator, others = process.new_threads(self._task, known)
        heirs = [tid for tid in others if process.has_affinity(tid, left)]
        self._pin_others([*emulator, *heirs], wanted)
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
            fields = read(self._usage_fd, LONG).rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) * USER_HZ_NS
        if not usage.key:
            try:  # without ``read``: it is for each VM in each tick
                return int(os.pread(self._usage_fd, SHORT, 0)) * usage.unit_ns + self._used_outside_ns
            except OSError as error:
                raise refusal("read", error) from error
        return int(read(self._usage_fd, LONG).partition(usage.key)[2].split(None, 1)[0]) * usage.unit_ns

    def close(self) -> None:
        """Close all descriptors; may be called twice."""
        self._opened.close()

    def _close_schedstats(self) -> None:
        while self._schedstat_fds:
            os.close(self._schedstat_fds.popitem()[1])


def _used_outside_ns(cgroup: VmCgroup) -> int:
    """CPU time that was counted in libvirt's own group before the VM came into the batch group."""
    before = batch_group.file_outside(cgroup.usage_file) if cgroup.usage_file and cgroup.usage else None
    if before is None or cgroup.usage is None or cgroup.usage.key:  # v2 counts where the VM was started
        return 0
    with contextlib.suppress(HostError):
        return number_in(before) * cgroup.usage.unit_ns
    return 0
