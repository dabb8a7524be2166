"""Our sched_ext scheduler: loading it, seeing that it is the one that decides, its warps and its counters.

It belongs to no process: it stays when the agent ends, until its pin is removed. If the kernel ejects it, or it is
removed, every task is EEVDF's again (Documentation/scheduler/sched-ext.rst). Its maps are pinned, and reached through
the bpf(2) system call: microseconds, where bpftool takes tens of milliseconds.
"""

from __future__ import annotations

import struct
import subprocess
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from manager import bpf
from manager.errors import HostError
from manager.host.bpf_calls import BpfMap, possible_cpus
from manager.host.files import read_small
from manager.host.registry import HostPaths
from manager.host.resources.held_file import HeldFile
from manager.model.warp import EJECTED, LOADED, OUTDATED, UNLOADED

PINS = Path("sys/fs/bpf")
LINK = bpf.NAME  # bpftool pins a link under the name of what it links
_LOAD_S = 30
_UNLOAD_S = 5
_STATE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Warp:
    """How far a group's tasks may borrow, and for how much CPU time at one go; microseconds, limit 0: the default."""

    warp_us: int
    limit_us: int = 0


def deciding_scheduler(paths: HostPaths, state: HeldFile | None = None) -> str:
    """Name of the sched_ext scheduler that decides now, as the kernel reports it; empty: none does.

    The name of one that was thrown out may stay for as long as something holds it, such as its pin, so that ``state``,
    which is the file of it, is looked at first.
    """
    try:
        found = state.read(_STATE_BYTES) if state else read_small(str(paths.sched_ext_state))
        if found is None or found.strip() != b"enabled":
            return ""
        return read_small(str(paths.sched_ext_ops)).decode(errors="replace").strip()
    except OSError:
        return ""


class SchedExt:
    """The scheduler of a host. Every method raises HostError."""

    def __init__(self, paths: HostPaths, bpftool: str = "bpftool") -> None:
        self._paths = paths
        self._bpftool = bpftool
        self._pins = paths.root / PINS

    @property
    def active(self) -> bool:
        """Whether ours is what decides now."""
        return deciding_scheduler(self._paths).startswith(bpf.NAME)

    @property
    def state(self) -> int:
        """LOADED where it decides or, if that is another build, OUTDATED; EJECTED if only its pin is left, UNLOADED."""
        name = deciding_scheduler(self._paths)
        if name.startswith(bpf.NAME):
            return LOADED if name == bpf.build_name() else OUTDATED
        return EJECTED if (self._pins / LINK).exists() else UNLOADED

    def load(self) -> None:
        """Load it, in place of an ejected one or another build of ours; tasks are EEVDF's in between. All warps begin
        at 0. The kernel refuses beside another's.
        """
        before = self.state
        if before == LOADED:
            return
        self.unload()
        if before == OUTDATED:
            self._wait_until_disabled()
        try:
            bpftool = subprocess.run(
                [self._bpftool, "struct_ops", "register", str(bpf.OBJECT), str(self._pins)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LOAD_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostError(f"{self._bpftool}: {error}") from error
        # bpftool 7.5 ends with 0 also when the kernel did not take it.
        if not self.active:
            self.unload()
            said = " ".join((bpftool.stderr or bpftool.stdout).split())[-400:]
            raise HostError(f"the kernel did not take the scheduler {bpf.NAME}: {said}")

    def _wait_until_disabled(self) -> None:
        until = time.monotonic() + _UNLOAD_S
        while self._paths.sched_ext_state.read_text().strip() != "disabled":
            if time.monotonic() > until:
                raise HostError(f"the kernel did not let go of the scheduler {bpf.NAME} within {_UNLOAD_S} s")
            time.sleep(0.01)

    def unload(self) -> None:
        """Remove the link, which gives all tasks back, and what else is pinned. Nothing there is no error."""
        for name in (LINK, bpf.WARPS, bpf.STATS, bpf.CPUS):
            try:
                (self._pins / name).unlink(missing_ok=True)
            except OSError as error:
                raise HostError(f"remove {self._pins / name}: {error.strerror}", error.errno or 0) from error

    def set_warp(self, cgroup_id: int, warp: Warp) -> None:
        """Give a control group, by its id, a warp; 0 takes it away. Acts when a task is queued next."""
        key = bpf.CGROUP.pack(cgroup_id)
        with closing(BpfMap(self._pins / bpf.WARPS)) as warps:
            if warp.warp_us:
                warps.write(key, bpf.WARP.pack(warp.warp_us * 1000, warp.limit_us * 1000))
            else:
                warps.remove(key)

    def warp(self, cgroup_id: int) -> Warp:
        """What a control group has now."""
        with closing(BpfMap(self._pins / bpf.WARPS)) as warps:
            value = warps.read(bpf.CGROUP.pack(cgroup_id), bpf.WARP.size)
        if value is None:
            return Warp(0)
        warp_ns, limit_ns = bpf.WARP.unpack(value)
        return Warp(warp_ns // 1000, limit_ns // 1000)

    def counters(self) -> dict[str, int]:
        """What the scheduler counted since it was loaded, by the names in ``bpf.COUNTERS``."""
        one_cpu = struct.Struct(f"={len(bpf.COUNTERS)}Q")
        possible = possible_cpus(self._paths)
        with closing(BpfMap(self._pins / bpf.STATS)) as stats:
            value = stats.read(bytes(4), one_cpu.size * possible) or b""
        return dict(zip(bpf.COUNTERS, map(sum, zip(*one_cpu.iter_unpack(value), strict=True)), strict=True))
