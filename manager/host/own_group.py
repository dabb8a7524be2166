"""The control group of Equipoise itself: on cgroup v1 without systemd, beside those of the VMs.

Outside it competes with the group that holds all VMs, and the kernel lets a thread there run on for a slice whoever
wakes up in that group: each tick kept critical VMs waiting for milliseconds (docs/internals/tail.md). Beside them it
has an ordinary weight: less than critical VMs, which come first, and more than batch VMs. Under systemd the units say
so (``Slice=``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from manager.host.batch_group import MACHINES
from manager.host.cgroup import cpu_controller, parse_process_cgroups, read_mounts
from manager.host.registry import CGROUP_V1, HostPaths

FOLDER = "equipoise"
_PROCESSES = "cgroup.procs"


@contextlib.contextmanager
def beside_vms(paths: HostPaths) -> Iterator[Path | None]:
    """This process, with those it starts, is in a group beside those of VMs while the block runs; None: it is not.

    It stays where it is if somebody put it into a group, and where libvirt has no group for VMs (yet), which is looked
    at once. The group is removed with the last that leaves; what a crash leaves behind is empty, and the next that
    leaves removes it.
    """
    folder = _folder(paths)
    if folder is None or not _joined(folder):
        yield None
        return
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            (folder.parent.parent / _PROCESSES).write_text(str(os.getpid()))
            folder.rmdir()


def _joined(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
        (folder / _PROCESSES).write_text(str(os.getpid()))
    except OSError:  # not root, or a kernel that has no room for it: better there than not at all
        with contextlib.suppress(OSError):  # others are in it
            folder.rmdir()
        return False
    return True


def _folder(paths: HostPaths) -> Path | None:
    try:
        mounts = read_mounts(paths)
        groups = parse_process_cgroups((paths.process(os.getpid()) / "cgroup").read_text())
    except OSError:
        return None
    if cpu_controller(mounts) is not CGROUP_V1:
        return None
    point, top = mounts.by_controller[CGROUP_V1.controller]
    for machine in MACHINES:
        here = top, f"{top.rstrip('/')}/{machine}/{FOLDER}"
        if (point / machine).is_dir():
            return point / machine / FOLDER if groups.get(CGROUP_V1.controller) in here else None
    return None
