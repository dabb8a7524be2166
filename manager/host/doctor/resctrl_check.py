"""resctrl: cache allocation, memory bandwidth and monitoring. Nothing is mounted or written."""

from __future__ import annotations

from manager.host.doctor.check import Check, CheckResult, Subject, missing, warning, works
from manager.host.doctor.kernel_text import cpu_flags, mounted, names_in, text_of
from manager.model.cache import is_ours

_AREA = "Cache"
_MOUNT = "mount -t resctrl resctrl /sys/fs/resctrl"
_BY_US = "let the agent do it: the host's fields cache: on and cache_mount: true"
_NOT_GROUPS = frozenset({"info", "mon_data", "mon_groups"})
_FLAGS = frozenset({"cat_l3", "cat_l2", "cdp_l3", "mba", "smba", "cqm", "cqm_llc", "cqm_mbm_total", "bmec"})


def _resctrl(subject: Subject) -> CheckResult:
    kinds = (text_of(subject.paths.filesystems) or "").split()
    hardware = ", ".join(sorted(cpu_flags(subject.paths) & _FLAGS))
    if "resctrl" not in kinds:
        if hardware:
            return missing(
                f"the CPU has {hardware}, but this kernel has no resctrl",
                "run a kernel with CONFIG_X86_CPU_RESCTRL, and without rdt=! options that switch it off",
            )
        return missing(
            "neither the CPU nor the kernel has resctrl (CAT, MBA, MPAM)",
            "nothing to do: everything but cache partitions works without",
        )
    point = mounted(subject.paths, "resctrl")
    if point is None:
        return warning("the kernel has resctrl, but it is not mounted", f"{_MOUNT}, or {_BY_US}")
    return works(f"mounted at {point}" + (f"; the CPU has {hardware}" if hardware else ""))


def _part(subject: Subject, what: str, flag: str, kinds: tuple[str, ...], shown: tuple[str, ...]) -> CheckResult:
    """One of resctrl's abilities, with the numbers that info/ has about it; ``flag`` is the CPU's."""
    point = mounted(subject.paths, "resctrl")
    if point is None and flag in cpu_flags(subject.paths):
        return missing(f"the CPU has {what}, but resctrl is not mounted", f"{_MOUNT}, or {_BY_US}")
    if point is None:
        return missing(f"no resctrl is mounted, so no {what}", "see the finding `resctrl`")
    folder = next((point / "info" / kind for kind in kinds if (point / "info" / kind).is_dir()), None)
    if folder is not None:
        values = {name: text_of(folder / name) for name in shown}
        numbers = ", ".join(f"{name} {' '.join(value.split())}" for name, value in values.items() if value is not None)
        return works(f"{folder.name}: {numbers}; used where the host's field cache is on")
    return missing(f"this CPU has no {what}", "nothing to do: the other steps work without")


def _allocation(subject: Subject) -> CheckResult:
    shown = ("cbm_mask", "min_cbm_bits", "num_closids", "shareable_bits")
    return _part(subject, "cache allocation", "cat_l3", ("L3", "L3DATA"), shown)


def _bandwidth(subject: Subject) -> CheckResult:
    shown = ("min_bandwidth", "bandwidth_gran", "num_closids")
    return _part(subject, "memory bandwidth allocation", "mba", ("MB",), shown)


def _monitoring(subject: Subject) -> CheckResult:
    return _part(subject, "cache monitoring", "cqm", ("L3_MON",), ("mon_features", "num_rmids"))


def _groups(subject: Subject) -> CheckResult:
    point = mounted(subject.paths, "resctrl")
    if point is None:
        return works("none: resctrl is not mounted")
    names = [name for name in names_in(point) if (point / name).is_dir() and name not in _NOT_GROUPS]
    others = [name for name in names if not is_ours(name)]
    if others:
        return warning(
            f"{len(others)} groups of other tools use up classes and cache ways: {', '.join(others[:5])}",
            "they are left alone; remove what is not wanted (pqos -R, <cachetune> of domains) to have the ways",
        )
    return works("none of other tools")


CHECKS = (
    Check("resctrl", _AREA, "resctrl", _resctrl),
    Check("cache-allocation", _AREA, "Cache allocation", _allocation),
    Check("memory-bandwidth", _AREA, "Memory bandwidth", _bandwidth),
    Check("cache-monitoring", _AREA, "Cache monitoring", _monitoring),
    Check("resctrl-groups", _AREA, "Groups of other tools", _groups),
)
