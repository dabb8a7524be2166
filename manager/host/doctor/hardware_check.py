"""Time source, clock frequency, idle states, and threads of cores."""

from __future__ import annotations

from collections import Counter

from manager.host.doctor.check import Check, CheckResult, Subject, degraded, unknown, warning, works
from manager.host.doctor.kernel_text import names_in, number_of, online_managed, text_of
from manager.model.cpus import format_cpus

_AREA = "Time and power"
_SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"})
_DEEP_US = 100


def _clocksource(subject: Subject) -> CheckResult:
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


def _cpufreq(subject: Subject) -> CheckResult:
    folders = [subject.paths.cpufreq / name for name in names_in(subject.paths.cpufreq) if name.startswith("policy")]
    if not folders:
        return works("the kernel does not change the clock frequency")
    governors = Counter(text_of(folder / "scaling_governor") or "unknown" for folder in folders)
    seen = ", ".join(f"{name} on {count} of {len(folders)} policies" for name, count in sorted(governors.items()))
    if set(governors) == {"performance"}:
        return works(seen)
    return degraded(
        f"{seen}: a vCPU that wakes up starts at a low frequency",
        "cpupower frequency-set -g performance (or tuned's profile virtual-host)",
    )


def _cpuidle(subject: Subject) -> CheckResult:
    """States that take more than 100 us to leave, on managed pCPUs; hotplugged ones may have none."""
    deep: dict[str, tuple[int, set[int]]] = {}
    states = 0
    for cpu in sorted(online_managed(subject.paths, subject.managed_cpus)):
        folder = subject.paths.cpuidle(cpu)
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


def _smt(subject: Subject) -> CheckResult:
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


CHECKS = (
    Check("clocksource", _AREA, "Time source", _clocksource),
    Check("cpufreq", _AREA, "Clock frequency", _cpufreq),
    Check("cpuidle", _AREA, "Idle states", _cpuidle),
    Check("smt", _AREA, "Threads of a core (SMT)", _smt),
)
