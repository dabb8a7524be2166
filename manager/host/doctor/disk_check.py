"""On which disks weights of VMs act, where nothing is written; and whether ceilings are taken, by a scratch group."""

from __future__ import annotations

from manager.errors import HostError
from manager.host.cgroup import read_mounts
from manager.host.disk_ceilings import DiskCeilings
from manager.host.disk_weights import cost_text
from manager.host.doctor.check import CheckResult, Subject, ignored, missing, unknown, works
from manager.host.doctor.scratch import scratch_group
from manager.host.files import text_of
from manager.host.knob_files import VmTarget
from manager.host.resources.host_counters import HostCounterFiles
from manager.model.knobs import UNLIMITED, Knob, KnobKey

_ADVICE = (
    "echo bfq > /sys/block/NAME/queue/scheduler for the disk that holds the images of VMs (modprobe bfq first), or on"
    " cgroup v2 enable io.cost for it in io.cost.qos; compare its throughput before and after"
)
_WITHOUT_CEILINGS = "use a kernel with CONFIG_BLK_DEV_THROTTLING"
_TRIED, _CEILING = "equipoise-doctor", 100_000


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


def ceilings(subject: Subject) -> CheckResult:
    """Of requests per second: set for a disk of the host, read back, and taken away. Raises OSError."""
    mounts = read_mounts(subject.paths)
    root, _ = mounts.by_controller.get("blkio", mounts.by_controller.get("", (None, "")))
    if root is None:
        return missing("no cgroup hierarchy has a controller of disks", "boot with cgroup v2")
    if "blkio" not in mounts.by_controller and "io" not in (text_of(root / "cgroup.subtree_control") or "").split():
        return unknown(
            "not tried: the io controller is not enabled for groups below the root",
            "start a VM, or set IOAccounting=yes for machine.slice",
        )
    numbers = HostCounterFiles(subject.paths, links=dict).read(()).numbers
    with scratch_group(root) as group:
        files, target = DiskCeilings(subject.paths, mounts), VmTarget(_TRIED, None, (), None, group)
        keys = [KnobKey(_TRIED, Knob.DISK_CEILING, number) for number in sorted(numbers.values())]
        key = next(iter(files.read(target).keys() & set(keys)), None)
        if key is None:
            return missing("groups have no limits of disks, or this host has no disk", _WITHOUT_CEILINGS)
        try:
            taken = files.write(key, _CEILING, target) == _CEILING and files.write(key, UNLIMITED, target) == UNLIMITED
        except HostError as error:
            return ignored(f"a ceiling is refused: {error}", _WITHOUT_CEILINGS)
        finally:
            files.forget(_TRIED)
    if not taken:
        return ignored("a ceiling was set, and another one read back", _WITHOUT_CEILINGS)
    return works("a ceiling of requests per second was set, read back, and taken away")
