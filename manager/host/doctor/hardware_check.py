"""Privileges, and what is only looked at: kernel, hardware, time source, power, and settings for all processes."""

from __future__ import annotations

import os
import re
from collections import Counter

from manager.host.doctor.check import CheckResult, Subject, degraded, missing, unknown, warning, works
from manager.host.files import cpu_flags, cpus_of, names_in, number_of, text_of
from manager.host.power_knobs import unless_offline
from manager.model.cpus import format_cpus
from manager.model.units import percent

_RELEASE = re.compile(r"(\d+)\.(\d+)")
_OLDEST = (5, 4)  # the oldest stable series whose schedulers and cgroups were looked at
# linux/capability.h
_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_SYS_NICE": 23}
# PROC_PID_INIT_INO and PROC_CGROUP_INIT_INO of linux/proc_ns.h: the namespaces that the kernel itself begins with
_FIRST_NAMESPACES = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]"}
_SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"})
_DEEP_US = 100


def kernel(subject: Subject) -> CheckResult:
    release = subject.paths.kernel_release.read_text().strip()
    detail = f"Linux {release} on {os.uname().machine}"
    match = _RELEASE.match(release)
    if match and (int(match[1]), int(match[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        return warning(f"{detail}: older than {oldest}", f"run {oldest} or newer; 6.12 and newer have most controls")
    return works(detail)


def privileges(subject: Subject) -> CheckResult:
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


def container(subject: Subject) -> CheckResult:
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


def virtual_machine(subject: Subject) -> CheckResult:
    if "hypervisor" not in cpu_flags(subject.paths):
        return works("no CPU flag `hypervisor`: real hardware")
    return warning(
        "this host is a virtual machine itself: whoever runs it may take its CPUs away (steal in `vmstat 1`)",
        "rely on SLAs only on real hardware, or on an instance with dedicated CPUs",
    )


def clocksource(subject: Subject) -> CheckResult:
    current = text_of(subject.paths.clocksource / "current_clocksource")
    if current is None:
        return unknown("this kernel does not say what its time source is", "nothing to do")
    available = (text_of(subject.paths.clocksource / "available_clocksource") or "").split()
    seen = f"{current}; available: {', '.join(available)}"
    if current not in _SLOW_CLOCKS:
        return works(seen)
    if "tsc" in available:
        return degraded(f"{seen}: reading it is slow", f"echo tsc > {subject.paths.clocksource}/current_clocksource")
    return degraded(
        f"{seen}: reading it is slow",
        "the kernel found the TSC unstable: see `dmesg | grep -i tsc`, and the firmware's settings",
    )


def cpufreq(subject: Subject) -> CheckResult:
    folders = [subject.paths.cpufreq / name for name in names_in(subject.paths.cpufreq) if name.startswith("policy")]
    if not folders:
        return works("the kernel does not change the clock frequency")
    governors = Counter[str]()
    for folder in folders:
        with unless_offline():
            governors[text_of(folder / "scaling_governor") or "unknown"] += 1
    total = governors.total()
    seen = ", ".join(f"{name} on {count} of {total} policies" for name, count in sorted(governors.items()))
    if set(governors) == {"performance"}:
        return works(seen)
    return degraded(
        f"{seen}: a vCPU that wakes up starts at a low frequency",
        "cpupower frequency-set -g performance (or tuned's profile virtual-host)",
    )


def cpuidle(subject: Subject) -> CheckResult:
    """States that take more than 100 us to leave, on managed pCPUs; hotplugged ones may have none."""
    deep: dict[str, tuple[int, set[int]]] = {}
    states = 0
    for cpu in sorted(subject.managed_online()):
        folder = subject.paths.cpu(cpu) / "cpuidle"
        for name in names_in(folder):
            latency_us = number_of(folder / name / "latency")
            if latency_us is None:
                continue
            states += 1
            if latency_us > _DEEP_US and not number_of(folder / name / "disable"):
                deep.setdefault(text_of(folder / name / "name") or name, (latency_us, set()))[1].add(cpu)
    if not states:
        return works("the kernel chooses no idle states here")
    if not deep:
        return works(f"no idle state of the managed pCPUs takes more than {_DEEP_US} us to leave")
    seen = ", ".join(f"{name} ({us} us) on pCPUs {format_cpus(cpus)}" for name, (us, cpus) in sorted(deep.items()))
    return warning(
        f"deep idle states are on: {seen}; a wake-up may take that long",
        f"cpupower idle-set -D {_DEEP_US + 1}, if a response-time SLA is below a few milliseconds; it costs power",
    )


def smt(subject: Subject) -> CheckResult:
    control, active = text_of(subject.paths.smt / "control"), number_of(subject.paths.smt / "active")
    if control is None:
        return unknown("this kernel does not say", "nothing to do")
    if active:
        return warning(
            "on: two vCPUs may share a core and slow each other down",
            "critical vCPUs are put on different cores first; for the tightest SLAs leave cores to them alone with"
            f" managed_cpus, or `echo off > {subject.paths.smt}/control`",
        )
    return works(f"not active ({control})")


def numa(subject: Subject) -> CheckResult:
    value = number_of(subject.paths.numa_balancing)
    nodes = text_of(subject.paths.online_nodes) or "0"
    if not value:
        return works("the kernel does not move memory between nodes")
    if nodes.isdecimal():
        return works("on, without effect: this host has one memory node")
    return warning(
        f"on, with the memory nodes {nodes}: the kernel unmaps pages now and then to see who uses them, and moves them",
        "sysctl kernel.numa_balancing=0 once critical VMs are pinned and their memory is on their node",
    )


def isolation(subject: Subject) -> CheckResult:
    managed = subject.managed_online()
    isolated = cpus_of(subject.paths.isolated_cpus) & managed
    tickless = cpus_of(subject.paths.nohz_full_cpus) & managed
    if isolated:
        return warning(
            f"isolcpus= takes managed pCPUs {format_cpus(isolated)} from load balancing: floating VMs leave them idle",
            "remove isolcpus= from the kernel's command line; if it is wanted, leave those pCPUs out of managed_cpus",
        )
    if tickless:
        return warning(
            f"nohz_full= is on for managed pCPUs {format_cpus(tickless)}: with more than one thread the tick is back,"
            " and entering the kernel costs more",
            "leave out nohz_full= where batch VMs share the pCPUs",
        )
    return works("neither isolcpus= nor nohz_full= concerns managed pCPUs")


def autogroup(subject: Subject) -> CheckResult:
    value = number_of(subject.paths.autogroup)
    if value is None:
        return missing("this kernel has no autogroup", "nothing to do")
    state = "on: processes in the root cgroup compete as one group per session" if value else "off"
    return works(f"{state}; VMs in groups of their own are not concerned")


def real_time_throttling(subject: Subject) -> CheckResult:
    value = number_of(subject.paths.rt_runtime_us)
    if value == -1:
        return warning(
            "off: a real-time process can keep a pCPU from all VMs for ever", "sysctl kernel.sched_rt_runtime_us=950000"
        )
    if value is None:
        return unknown("this kernel does not say", "nothing to do")
    return works(f"real-time processes get {percent(value / 1e6)} of a pCPU at most")
