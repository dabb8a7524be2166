"""Run time and run-queue wait of all threads that are looked at, read by one call: the program of
``manager.bpf.threads``. The values are those of /proc/TID/schedstat.

It is held by this process only: program and maps vanish with it, whatever ends it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from manager.bpf import threads
from manager.errors import HostError
from manager.host.bpf_calls import BpfMap, open_pin, possible_cpus, run_program, visit_thread
from manager.host.bpf_objects import pinned
from manager.host.files import read_small
from manager.host.registry import HostPaths
from manager.host.wait_timer import WaitTimer
from manager.model.cpus import CpuSet
from manager.model.host import VcpuState

_NAME = "equipoise_threads"
_COLUMN_BYTES = 8 * threads.MOST_THREADS
_NO_THREAD = bytes(threads.PLACE.size)

_vcpu_state: Callable[[Iterable[object]], VcpuState] = partial(tuple.__new__, VcpuState)
"""As VcpuState._make, at half the cost: there are many."""

log = logging.getLogger(__name__)


class ThreadTimes:
    """The program, loaded. Not thread-safe: it belongs to the control loop.

    By place: ``run_ns``, ``delay_ns`` and ``marks`` as of the last look. A mark is another one once the thread's
    affinity, or for a main thread the number of threads, is; ENDED once it is gone. ``changes`` counts looks at which
    any mark was another one than at the look before, ``holdings`` how often places were given away or taken back.
    ``chosen``: the places that were looked at last apart from the others, which ``timer`` samples.
    """

    def __init__(self, paths: HostPaths, bpftool: str = "bpftool") -> None:
        """Load it and try it on this very thread. Linux 6.1 or newer. Raises HostError."""
        self.run_ns: list[int] = []
        self.delay_ns: list[int] = []
        self.marks: list[int] = []
        self.changes = 0
        self.holdings = 0
        self.chosen: Sequence[int] = ()
        self._count = 0  # of places that were ever given away
        self._free: defaultdict[int, list[range]] = defaultdict(list)  # by their length
        self._seen_marks = b""
        self._refused = ""
        self._is_full = False
        try:
            self._mask_words = min((possible_cpus(paths) + 63) // 64, threads.MOST_MASK_WORDS)
        except (OSError, ValueError) as error:
            raise HostError(f"{paths.possible_cpus}: {error}") from error
        with contextlib.ExitStack() as opened:
            with pinned(paths, threads.OBJECT, _NAME, bpftool) as folder:
                self._find, self._read, self._read_waits = (
                    _program(opened, folder / name) for name in (threads.FIND, threads.READ, threads.READ_WAITS)
                )
                self._wanted, self._places, times, self._chosen_places = (
                    opened.enter_context(closing(BpfMap(folder / "maps" / name)))
                    for name in (threads.WANTED, threads.PLACES, threads.TIMES, threads.CHOSEN)
                )
                self.timer = WaitTimer(opened, folder)
            mapped = times.mapped(_COLUMN_BYTES * len(threads.COLUMNS))
            opened.callback(mapped.close)
            self._columns = [
                opened.enter_context(memoryview(mapped)[at : at + _COLUMN_BYTES].cast("Q"))
                for at in range(0, _COLUMN_BYTES * len(threads.COLUMNS), _COLUMN_BYTES)
            ]
            self._try(paths)
            self._opened = opened.pop_all()

    def hold(self, tids: Sequence[int]) -> range:
        """Places for these threads, side by side; those of one that is gone already say so.

        Raises HostError, also when there are no more of them.
        """
        count = len(tids)
        if self._refused:
            raise HostError(self._refused)
        if self._free[count]:
            held = self._free[count].pop()
        elif self._count + count <= threads.MOST_THREADS:
            held = range(self._count, self._count + count)
            self._count += count
        else:
            if not self._is_full:
                log.warning("times of vCPUs are read from files for all beyond %d threads", threads.MOST_THREADS)
            self._is_full = True
            raise HostError(f"more than {threads.MOST_THREADS} threads")
        try:
            for place, tid in zip(held, tids, strict=True):
                self._wanted.write(bytes(threads.INDEX.size), threads.WANTED_PLACE.pack(place))
                visit_thread(self._find, tid)
        except HostError:
            self.release(held)
            raise
        self._seen_marks = b""
        self.holdings += 1
        for place in held[: max(len(self.marks) - held.start, 0)]:
            self.marks[place] = threads.ENDED  # until the next look
        return held

    def release(self, held: range) -> None:
        """Of no use any more. Raises HostError."""
        self._free[len(held)].append(held)
        self.holdings += 1
        for place in held:
            self._places.write(threads.INDEX.pack(place), _NO_THREAD)

    def look(self) -> None:
        """Read all of them. Where the kernel refuses that, which is logged, nothing is known any more."""
        if not self._count or not self._run(self._read, self._count):
            return
        run_ns, delay_ns, marks, _ = (column[: self._count] for column in self._columns)
        self.run_ns, self.delay_ns = run_ns.tolist(), delay_ns.tolist()
        seen = marks.tobytes()
        if seen != self._seen_marks:
            self._seen_marks, self.marks = seen, marks.tolist()
            self.changes += 1

    def waits(self, chosen: Sequence[int]) -> list[int]:
        """Run-queue wait now at some places, in order, GONE of a thread that is; none where the kernel refuses."""
        if not self._run(self._read_waits, len(chosen), chosen):
            return []
        return self._columns[-1][: len(chosen)].tolist()

    def choose(self, chosen: Sequence[int]) -> None:
        """The places that ``waits`` and ``timer`` look at. Raises HostError."""
        if chosen is not self.chosen:
            for number, place in enumerate(chosen):
                self._chosen_places.write(threads.INDEX.pack(number), threads.INDEX.pack(place))
            self.chosen = chosen

    def _run(self, program: int, count: int, chosen: Sequence[int] | None = None) -> bool:
        """Whether the kernel did; it is not asked again once it refused, which is logged."""
        if self._refused:
            return False
        try:
            if chosen is not None:
                self.choose(chosen)
            run_program(program, threads.READING.pack(count, self._mask_words))
        except HostError as error:
            log.warning("times of vCPUs are read from files from now on: %s", error)
            self._refused = str(error)
            self.run_ns, self.delay_ns, self.marks = [], [], []
            self.changes += 1
            return False
        return True

    def close(self) -> None:
        """Unload it; may be called twice."""
        self._opened.close()

    def _try(self, paths: HostPaths) -> None:
        """Raises HostError unless what is read of this thread is what its file says."""
        tid = threading.get_native_id()
        held = self.hold([tid])
        try:
            before = _schedstat(paths, tid)
            self.look()
            after = _schedstat(paths, tid)
        finally:
            self.release(held)
        if self.marks[held.start] == threads.ENDED:
            raise HostError("the program on threads does not find this one: it may be in another PID namespace")
        seen = self.run_ns[held.start], self.delay_ns[held.start]
        if not all(early <= now <= late for early, now, late in zip(before, seen, after, strict=True)):
            raise HostError(f"the program on threads reads {seen} ns, where the file says {before} to {after}")


class VmTimes:
    """Of the threads of one VM: its vCPUs, its main thread, and its I/O threads."""

    def __init__(self, times: ThreadTimes) -> None:
        self._times = times
        self._tids: tuple[int, ...] = ()
        self._held = range(0)
        self._begin = self._vcpus_end = self._end = 0
        self._marks: list[int] | None = None
        self._changes = -1

    def holds(self, vcpus: Sequence[int], others: Sequence[int]) -> bool:
        """Whether these are the threads that it looks at, and none of them has ended."""
        return (*vcpus, *others) == self._tids and threads.ENDED not in self._times.marks[self._begin : self._end]

    def hold(self, vcpus: Sequence[int], others: Sequence[int]) -> None:
        """Look at these threads, by their ids, from the next look on. Where that fails, nothing of them is known."""
        tids = (*vcpus, *others)
        if self.holds(vcpus, others):
            return
        self.close()
        try:
            self._held = self._times.hold(tids)
        except HostError as error:
            log.debug("times of threads %s are read from files: %s", tids, error)
            return
        self._tids, self._begin, self._end = tids, self._held.start, self._held.stop
        self._vcpus_end = self._begin + len(vcpus)

    @property
    def unchanged(self) -> bool:
        """Whether all of them are there, and are as they were when ``settle`` was called."""
        times = self._times
        if times.changes != self._changes:
            if self._marks is None or times.marks[self._begin : self._end] != self._marks:
                return False
            self._changes = times.changes
        return True

    def states(self, indexes: Sequence[int], cpus: Sequence[CpuSet]) -> tuple[VcpuState, ...] | None:
        """Of the vCPUs, which have these numbers and affinities; None unless all is ``unchanged``."""
        counters = self.counters()
        if counters is None:
            return None
        run_ns, delay_ns = counters
        return tuple(map(_vcpu_state, zip(indexes, cpus, delay_ns, run_ns, strict=True)))

    def counters(self) -> tuple[list[int], list[int]] | None:
        """Run time and run-queue wait of the vCPUs; None unless all is ``unchanged``."""
        times = self._times
        if times.changes != self._changes and not self.unchanged:
            return None
        return times.run_ns[self._begin : self._vcpus_end], times.delay_ns[self._begin : self._vcpus_end]

    def settle(self) -> None:
        """All else that is known of them is read now: as it was at the last look, or newer."""
        marks = self._times.marks[self._begin : self._end]
        complete = bool(self._tids) and len(marks) == len(self._tids) and threads.ENDED not in marks
        self._marks, self._changes = (marks, self._times.changes) if complete else (None, -1)

    @property
    def vcpu_places(self) -> range:
        """Those of its vCPUs; empty where they are read by files."""
        return range(self._begin, self._vcpus_end)

    def close(self) -> None:
        """Look at none of them any more; may be called twice."""
        if self._tids:
            self._tids, self._marks, self._changes = (), None, -1
            self._begin = self._vcpus_end = self._end = 0
            with contextlib.suppress(HostError):  # whose place is taken for nothing then
                self._times.release(self._held)


def _program(opened: contextlib.ExitStack, pin: Path) -> int:
    """Its descriptor, closed with the rest. Raises HostError."""
    program = open_pin(pin)
    opened.callback(os.close, program)
    return program


def _schedstat(paths: HostPaths, tid: int) -> tuple[int, int]:
    """Run time and run-queue wait. Raises HostError."""
    try:
        run_ns, delay_ns, _ = read_small(f"{paths.processes}/{tid}/schedstat").split()
    except (OSError, ValueError) as error:
        raise HostError(f"schedstat of thread {tid}: {error}") from error
    return int(run_ns), int(delay_ns)
