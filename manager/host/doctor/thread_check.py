"""Whether the times of all vCPUs can be read by one call, tried for an instant."""

from __future__ import annotations

from contextlib import closing

from manager.errors import HostError
from manager.host.doctor.check import CheckResult, Subject, degraded, not_tried, works
from manager.host.thread_times import ThreadTimes


def times(subject: Subject) -> CheckResult:
    if subject.quick:
        return not_tried("--quick")
    try:
        with closing(ThreadTimes(subject.paths)):
            return works("by a BPF program, with the values of the files")
    except HostError as error:
        return degraded(
            f"read from files, several for each VM: {error}",
            "nothing needs it; install bpftool, run Linux 6.1 or newer",
        )
