"""The kernel, what this process may do, and what lies between it and the hardware."""

from __future__ import annotations

import os
import re

from manager.host.doctor.check import Check, CheckResult, Subject, degraded, missing, warning, works
from manager.host.doctor.kernel_text import cpu_flags

_AREA = "Host"
_RELEASE = re.compile(r"(\d+)\.(\d+)")
_OLDEST = (5, 4)  # the oldest stable series whose schedulers and cgroups were looked at
# linux/capability.h
_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_SYS_NICE": 23}
# PROC_PID_INIT_INO and PROC_CGROUP_INIT_INO of linux/proc_ns.h: the namespaces that the kernel itself begins with
_FIRST_NAMESPACES = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]"}


def _kernel(subject: Subject) -> CheckResult:
    release = subject.paths.kernel_release.read_text().strip()
    detail = f"Linux {release} on {os.uname().machine}"
    match = _RELEASE.match(release)
    if match and (int(match[1]), int(match[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        return warning(f"{detail}: older than {oldest}", f"run {oldest} or newer; 6.12 and newer have most controls")
    return works(detail)


def _privileges(subject: Subject) -> CheckResult:
    lines = dict(line.split(":", 1) for line in subject.paths.own_status.read_text().splitlines() if ":" in line)
    if not {"Uid", "CapEff"} <= lines.keys():
        raise ValueError(f"{subject.paths.own_status} names no Uid or CapEff")
    user, effective = int(lines["Uid"].split()[1]), int(lines["CapEff"], 16)
    lacking = [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    if user:
        return missing(f"running as user {user}, not as root", "run it as root: `sudo equipoise doctor`")
    if "CAP_SYS_NICE" in lacking:
        return missing(
            "root without CAP_SYS_NICE: threads of QEMU cannot be pinned",
            "give the agent the capability: AmbientCapabilities= in its unit, --cap-add=SYS_NICE of a container",
        )
    if lacking:
        return degraded(
            "root without CAP_SYS_ADMIN: no BPF scheduler, no mounting of resctrl",
            "give the agent the capability, or do without warp by sched_ext and without cache partitions",
        )
    return works("root with CAP_SYS_NICE and CAP_SYS_ADMIN")


def _container(subject: Subject) -> CheckResult:
    folder = subject.paths.own_namespaces
    inner = [name for name, first in _FIRST_NAMESPACES.items() if (folder / name).readlink().name != first]
    if inner:
        return degraded(
            f"in {' and '.join(inner)} namespaces of its own: QEMU's processes or cgroups may not be visible",
            "run the agent on the host itself, or its container with --pid=host, --cgroupns=host and root_dir set",
        )
    marks = [str(mark) for mark in subject.paths.container_marks if mark.exists()]
    if marks:
        return works(f"in the host's PID and cgroup namespaces, but {marks[0]} says that this is a container")
    return works("not in a container: the host's own PID and cgroup namespaces")


def _virtual_machine(subject: Subject) -> CheckResult:
    if "hypervisor" not in cpu_flags(subject.paths):
        return works("no CPU flag `hypervisor`: real hardware")
    return warning(
        "this host is a virtual machine itself: whoever runs it may take its CPUs away (steal in `vmstat 1`)",
        "rely on SLAs only on real hardware, or on an instance with dedicated CPUs",
    )


CHECKS = (
    Check("kernel", _AREA, "Kernel", _kernel),
    Check("privileges", _AREA, "Privileges", _privileges, essential=True),
    Check("container", _AREA, "Container", _container),
    Check("virtual-machine", _AREA, "Real hardware", _virtual_machine),
)
