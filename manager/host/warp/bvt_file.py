"""Two kernels have a file cpu.bvt_warp_ns and mean something else by it: which of the two, if any, before any write.

The patch of Leverich and Kozyrakis takes nanoseconds. OpenAnolis and Alibaba Cloud Linux call "group identity" what
takes a class of -2 to 2 in the same file; some of their kernels crash when it is written, others have it switched off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from manager.host.cgroup import CgroupMounts
from manager.host.registry import CgroupCpu, HostPaths

WARP_FILE = "cpu.bvt_warp_ns"
Version = tuple[int, ...]
_ANOLIS = re.compile(r"^(\d+\.\d+\.\d+)-(\d+)\S*\.(?:al|an)\d", re.ASCII)
# Alibaba Cloud Linux's documentation of group identity: from the first of each pair on, up to but not the second.
_ACTS_WITHOUT_SWITCH: tuple[tuple[Version, Version], ...] = (
    ((4, 19, 91, 24), (4, 19, 91, 26)),
    ((5, 10, 46, 7), (5, 10, 112, 11)),
)


class FileKind(Enum):
    """What the file takes, if it may be written at all."""

    NANOSECONDS = auto()
    CLASS = auto()
    SWITCHED_OFF = auto()
    CRASHES = auto()
    UNCLEAR = auto()
    ABSENT = auto()


@dataclass(frozen=True, slots=True)
class BvtFile:
    """What was found out, in words."""

    kind: FileKind
    detail: str
    advice: str = ""


def bvt_file(paths: HostPaths, mounts: CgroupMounts, cpu: CgroupCpu | None) -> BvtFile:
    """Which of the two this kernel is; only looked at. Raises OSError, ValueError."""
    release = paths.kernel_release.read_text().strip()
    anolis = _ANOLIS.match(release)
    version = (*map(int, anolis[1].split(".")), int(anolis[2])) if anolis else None
    if re.match(r"4\.19\.91-25\.[1-5](\D|$)", release):
        advice = "upgrade to 4.19.91-26.4 or newer"
        return BvtFile(FileKind.CRASHES, f"Linux {release} crashes when {WARP_FILE} is written", advice)
    switch, patched = _number(paths.group_identity_enabled), paths.bvt_place_epsilon.exists()
    if patched and (switch is not None or anolis):
        return BvtFile(
            FileKind.UNCLEAR,
            f"Linux {release} shows marks of both the BVT patch and group identity",
            f"{WARP_FILE} is left alone",
        )
    if switch is not None:
        return _switched(on=switch != 0)
    file = _found(mounts, cpu)
    if patched:
        return _patched(file)
    if file is None:
        detail = f"no group has {WARP_FILE}: an ordinary kernel"
        return BvtFile(FileKind.ABSENT, detail, "nothing to do: warp by sched_ext takes its place")
    return _without_switch(file, release, version)


def _patched(file: Path | None) -> BvtFile:
    if file is None:
        advice = "mount the cpu controller of cgroup v1"
        return BvtFile(FileKind.SWITCHED_OFF, f"a BVT kernel, but no group has {WARP_FILE}", advice)
    return BvtFile(FileKind.NANOSECONDS, f"a BVT kernel: {WARP_FILE} takes nanoseconds")


def _switched(*, on: bool) -> BvtFile:
    if on:
        return BvtFile(FileKind.CLASS, "OpenAnolis group identity is switched on: the file takes a class of -2 to 2")
    detail = "OpenAnolis group identity is there but switched off"
    return BvtFile(FileKind.SWITCHED_OFF, detail, "sysctl kernel.sched_group_identity_enabled=1")


def _without_switch(file: Path, release: str, version: Version | None) -> BvtFile:
    """Before there was a switch (4.19.91-26.4, 5.10.134-13) group identity acted always, in some kernels never."""
    if version is None:
        return BvtFile(
            FileKind.UNCLEAR,
            f"{file} exists, but nothing says whether it takes nanoseconds or a class",
            "it is left alone; older OpenAnolis kernels look like this, newer ones say what they are",
        )
    if any(first <= version < last for first, last in _ACTS_WITHOUT_SWITCH):
        detail = f"Linux {release} has OpenAnolis group identity without a switch: the file takes a class of -2 to 2"
        return BvtFile(FileKind.CLASS, detail)
    return BvtFile(
        FileKind.SWITCHED_OFF,
        f"Linux {release} has {WARP_FILE} and does not act on it",
        "upgrade to 4.19.91-26.4, 5.10.134-13 or newer",
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return None


def _found(mounts: CgroupMounts, cpu: CgroupCpu | None) -> Path | None:
    """The file in the root of the cpu controller's hierarchy or in a group right below it."""
    if cpu is None:
        return None
    root = mounts.by_controller[cpu.controller][0]
    return next((file for file in (root / WARP_FILE, *sorted(root.glob(f"*/{WARP_FILE}"))) if file.exists()), None)
