"""Settings of the kernel's scheduler and memory management that act on all processes."""

from __future__ import annotations

from manager.host.doctor.check import Check, CheckResult, Subject, missing, unknown, warning, works
from manager.host.doctor.kernel_text import cpus_of, number_of, online_managed, text_of
from manager.model.cpus import format_cpus

_AREA = "Scheduling"


def _numa(subject: Subject) -> CheckResult:
    value = number_of(subject.paths.numa_balancing)
    nodes = (text_of(subject.paths.online_nodes) or "0").strip()
    if not value:
        return works("the kernel does not move memory between nodes")
    if nodes.isdecimal():
        return works("on, without effect: this host has one memory node")
    return warning(
        f"on, with the memory nodes {nodes}: the kernel unmaps pages now and then to see who uses them, and moves them",
        "sysctl kernel.numa_balancing=0 once critical VMs are pinned and their memory is on their node",
    )


def _isolation(subject: Subject) -> CheckResult:
    managed = online_managed(subject.paths, subject.managed_cpus)
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


def _autogroup(subject: Subject) -> CheckResult:
    value = number_of(subject.paths.autogroup)
    if value is None:
        return missing("this kernel has no autogroup", "nothing to do")
    state = "on: processes in the root cgroup compete as one group a session" if value else "off"
    return works(f"{state}; VMs in groups of their own are not concerned")


def _rt(subject: Subject) -> CheckResult:
    value = number_of(subject.paths.rt_runtime_us)
    if value == -1:
        return warning(
            "off: a real-time process can keep a pCPU from all VMs for ever", "sysctl kernel.sched_rt_runtime_us=950000"
        )
    if value is None:
        return unknown("this kernel does not say", "nothing to do")
    return works(f"real-time processes get {value / 1e6:.0%} of a pCPU at most")


CHECKS = (
    Check("numa-balancing", _AREA, "NUMA balancing", _numa),
    Check("isolation", _AREA, "Isolated pCPUs", _isolation),
    Check("autogroup", _AREA, "Autogroup", _autogroup),
    Check("rt-throttling", _AREA, "Real-time limit", _rt),
)
