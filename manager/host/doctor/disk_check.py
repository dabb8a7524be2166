"""On which disks weights of VMs act. Nothing is written."""

from __future__ import annotations

from manager.host.cgroup import read_mounts
from manager.host.disk_weights import cost_text
from manager.host.doctor.check import CheckResult, Subject, missing, unknown, works
from manager.host.resources.host_counters import HostCounterFiles

_ADVICE = (
    "echo bfq > /sys/block/NAME/queue/scheduler for the disk that holds the images of VMs (modprobe bfq first), or on"
    " cgroup v2 enable io.cost for it in io.cost.qos; compare its throughput before and after"
)


def weights(subject: Subject) -> CheckResult:
    """By the scheduler of each disk that was ever used, and io.cost. Raises OSError."""
    mounts = read_mounts(subject.paths)
    files = HostCounterFiles(subject.paths, links=dict, cost=lambda: cost_text(mounts))
    try:
        counters = files.read(())
    finally:
        files.close()
    if not counters.disks:
        return unknown("no disk of this host was used yet", "")
    if not counters.weighings:
        return missing(f"weights act on none of {', '.join(sorted(counters.disks))}", _ADVICE)
    acting = ", ".join(f"{disk} ({weighing})" for disk, weighing in sorted(counters.weighings.items()))
    others = ", ".join(sorted(counters.disks.keys() - counters.weighings.keys()))
    return works(f"weights act on {acting}" + (f"; not on {others}" if others else ""))
