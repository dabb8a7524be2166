"""Which mechanisms for warps a host has. Nothing of it is changed, nothing is loaded."""

from __future__ import annotations

import re
import shutil

from manager.host.cgroup import CgroupMounts
from manager.host.doctor.kernel_text import mounted
from manager.host.registry import CgroupCpu, HostPaths
from manager.host.sched_ext import PINS
from manager.host.warp.bvt_file import BvtFile, FileKind, bvt_file
from manager.host.warp.slices import default_slice_ns
from manager.model.warp import Mechanism, Offer

OLDEST_SEEN = 6, 17
"""The oldest Linux that our scheduler was seen to come to and to leave well. On 6.14 its removal while tasks were
running did not end, in a guest with one CPU."""


def offers_of(paths: HostPaths, mounts: CgroupMounts, cpu: CgroupCpu | None, bpftool: str = "bpftool") -> list[Offer]:
    """Each mechanism, the best first, with what was seen of it."""
    try:
        file = bvt_file(paths, mounts, cpu)
    except (OSError, ValueError) as error:
        file = BvtFile(FileKind.UNCLEAR, f"it cannot be found out what cpu.bvt_warp_ns would take: {error}")
    return [
        _sched_ext(paths, bpftool),
        Offer(Mechanism.BVT, file.kind is FileKind.NANOSECONDS, file.detail),
        Offer(Mechanism.GROUP_IDENTITY, file.kind is FileKind.CLASS, file.detail),
        _slice(default_slice_ns()),
    ]


def _sched_ext(paths: HostPaths, bpftool: str) -> Offer:
    release = paths.kernel_release.read_text().strip()
    oldest = ".".join(map(str, OLDEST_SEEN))
    needs = (
        (paths.sched_ext_state.exists(), "this kernel has no sched_ext"),
        (
            _version(release) >= OLDEST_SEEN,
            f"Linux {release} is older than {oldest}, the oldest it is known to work on",
        ),
        (paths.btf.exists(), f"there is no {paths.btf}, the types of this kernel"),
        (mounted(paths, "bpf") == paths.root / PINS, f"no BPF file system is mounted at /{PINS}"),
        (shutil.which(bpftool) is not None, "bpftool is not installed"),
    )
    lacking = [why for there, why in needs if not there]
    detail = "; ".join(lacking) or "sched_ext is there, and what it takes to load our scheduler"
    return Offer(Mechanism.SCHED_EXT, not lacking, detail)


def _version(release: str) -> tuple[int, ...]:
    """The first two numbers of a kernel's release; none where it has none."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return tuple(map(int, found.groups())) if found else ()


def _slice(default_ns: int | None) -> Offer:
    if default_ns is None:
        return Offer(Mechanism.SLICE, False, "this kernel does not honour slices of threads (Linux 6.12 does)")
    said = (
        f"EEVDF honours a slice of a thread: one was set and read back; the kernel's own is {default_ns / 10**6:g} ms"
    )
    return Offer(Mechanism.SLICE, True, said)
