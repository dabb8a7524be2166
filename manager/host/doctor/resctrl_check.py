"""resctrl: cache allocation, memory bandwidth and monitoring. Nothing is mounted or written."""

from __future__ import annotations

from functools import partial

from manager.host.doctor.check import CheckResult, Subject, missing, warning, works
from manager.host.files import cpu_flags, mounted, text_of
from manager.host.resctrl.groups import Groups
from manager.host.resctrl.tree import ResctrlTree

_MOUNT = "mount -t resctrl resctrl /sys/fs/resctrl"
_BY_US = "let the agent do it: the host's fields cache: on and cache_mount: true"
_FLAGS = frozenset({"cat_l3", "cat_l2", "cdp_l3", "mba", "smba", "cqm", "cqm_llc", "cqm_mbm_total", "bmec"})


def resctrl(subject: Subject) -> CheckResult:
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


allocation = partial(
    _part,
    what="cache allocation",
    flag="cat_l3",
    kinds=("L3", "L3DATA"),
    shown=("cbm_mask", "min_cbm_bits", "num_closids", "shareable_bits"),
)
bandwidth = partial(
    _part,
    what="memory bandwidth allocation",
    flag="mba",
    kinds=("MB",),
    shown=("min_bandwidth", "bandwidth_gran", "num_closids"),
)
monitoring = partial(_part, what="cache monitoring", flag="cqm", kinds=("L3_MON",), shown=("mon_features", "num_rmids"))


def groups(subject: Subject) -> CheckResult:
    """Those that other tools made."""
    tree = ResctrlTree(subject.paths)
    if tree.options() is None:
        return works("none: resctrl is not mounted")
    others = Groups(tree).of_others()
    if others:
        return warning(
            f"{len(others)} groups of other tools use up classes and cache ways: {', '.join(others[:5])}",
            "they are left alone; remove what is not wanted (pqos -R, <cachetune> of domains) to have the ways",
        )
    return works("none of other tools")
