"""Whether the times of all vCPUs can be read by one call, and sampled by the kernel, tried for an instant."""

from __future__ import annotations

import select
import time
from contextlib import closing

from manager.bpf import threads
from manager.errors import HostError
from manager.host.doctor.check import CheckResult, Subject, degraded, not_tried, works
from manager.host.thread_times import ThreadTimes

RINGS_S = 1.0
_INTERVAL_NS = 1_000_000


def times(subject: Subject) -> CheckResult:
    if subject.quick:
        return not_tried("--quick")
    try:
        with closing(ThreadTimes(subject.paths)) as times:
            if timer_rings(times):
                return works(
                    "by a BPF program, with the values of the files; while all is calm its timer samples for the guard"
                )
            return degraded(
                f"its timer did not ring within {RINGS_S:g} s: the guard samples by itself, which costs more CPU time",
                "nothing needs it; run Linux 6.1 or newer",
            )
    except HostError as error:
        return degraded(
            f"read from files, several for each VM: {error}",
            "nothing needs it; install bpftool, run Linux 6.1 or newer",
        )


def timer_rings(times: ThreadTimes) -> bool:
    """Whether the timer takes a sample, of a place that no thread has. Raises HostError."""
    times.choose([threads.MOST_THREADS - 1])
    now_ns = time.monotonic_ns()
    times.timer.start(now_ns, [0], [0.0], _INTERVAL_NS, now_ns)
    try:
        return bool(select.select([times.timer.descriptor], [], [], RINGS_S)[0])
    finally:
        times.timer.stop()
