"""Schedulers that warp: sched_ext and kernels with BVT. Only looked at, never written to."""

from __future__ import annotations

import re
from pathlib import Path

from manager.host.cgroup import cpu_controller, read_mounts
from manager.host.doctor.check import Check, Subject, Verdict, degraded, missing, unknown, warning, works
from manager.host.doctor.files import number_of, text_of

_AREA = "Warp"
_WARP_FILE = "cpu.bvt_warp_ns"
_OURS = "equipoise"
# OpenAnolis kernels that crash when the file is written
_CRASHES = re.compile(r"^4\.19\.91-25\.[1-5](\D|$)")


def _sched_ext(subject: Subject) -> Verdict:
    paths = subject.paths
    state = text_of(paths.sched_ext_state)
    if state is None:
        return missing(
            "this kernel has no sched_ext",
            "run Linux 6.12 or newer with CONFIG_SCHED_CLASS_EXT for warp by sched_ext; everything else works without",
        )
    if state == "disabled":
        return works("there, and no scheduler is loaded")
    name = text_of(paths.sched_ext_ops) or "unknown"
    if name.startswith(_OURS):
        return works(f"{state}: Equipoise's own scheduler {name!r}")
    return warning(
        f"{state}: the scheduler {name!r} of somebody else decides, which may ignore CPU weights",
        f"believe the finding `cpu-weight-acts`; stop {name!r} (its service, often scx.service or scx_loader) if it"
        " ignores them",
    )


def _bvt_kernel(subject: Subject) -> Verdict:
    release = subject.paths.kernel_release.read_text().strip()
    if _CRASHES.match(release):
        return warning(f"Linux {release} crashes when {_WARP_FILE} is written", "upgrade to 4.19.91-26.4 or newer")
    enabled = number_of(subject.paths.group_identity_enabled)
    if enabled is not None:
        return _group_identity(switched_on=enabled != 0)
    file = _warp_file(subject)
    if text_of(subject.paths.bvt_place_epsilon) is not None:
        if file is None:
            return degraded(f"a BVT kernel, but no group has {_WARP_FILE}", "mount the cpu controller of cgroup v1")
        return works(f"a BVT kernel: {_WARP_FILE} takes nanoseconds")
    if file is not None:
        return unknown(
            f"{file} exists, but nothing says whether it takes nanoseconds or a class",
            "it is left alone; older OpenAnolis kernels look like this, newer ones say what they are",
        )
    return missing(f"no group has {_WARP_FILE}: an ordinary kernel", "nothing to do: warp by sched_ext takes its place")


def _group_identity(switched_on: bool) -> Verdict:
    """OpenAnolis and Alibaba Cloud Linux."""
    if switched_on:
        return works("OpenAnolis group identity is switched on: the file takes a class of -2 to 2")
    return degraded(
        "OpenAnolis group identity is there but switched off", "sysctl kernel.sched_group_identity_enabled=1"
    )


def _warp_file(subject: Subject) -> Path | None:
    """The file in the root of the cpu controller's hierarchy or in a group right below it."""
    mounts = read_mounts(subject.paths)
    cpu = cpu_controller(mounts)
    if cpu is None:
        return None
    root = mounts.by_controller[cpu.controller][0]
    found = [root / _WARP_FILE, *sorted(root.glob(f"*/{_WARP_FILE}"))]
    return next((file for file in found if file.exists()), None)


CHECKS = (
    Check("sched-ext", _AREA, "sched_ext", _sched_ext),
    Check("bvt-kernel", _AREA, "BVT in the kernel", _bvt_kernel),
)
