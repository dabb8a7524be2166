"""The share that a VM gets of a disk's time: weights of its control group, and which disks they act on."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Mapping
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host.cgroup import CgroupMounts
from manager.host.files import read, text_of, write
from manager.host.held_knobs import HeldKnobs
from manager.host.knob_files import VmTarget, checked_number
from manager.host.registry import COST_FILE, DISK_WEIGHT_FILES, HostPaths
from manager.model.knob_spec import KnobValue
from manager.model.knobs import DISK_WEIGHTS, KnobKey
from manager.model.resource_use import Weighing

_DEFAULT = b"default "


class DiskWeights(HeldKnobs):
    """Those of BFQ and of io.cost, each where the kernel has it. Belongs to the control loop's thread.

    Weights that an operator gave a group for one disk alone come before these, and stay.
    """

    def __init__(self, mounts: CgroupMounts) -> None:
        """Nothing is opened yet."""
        super().__init__()
        self._names = DISK_WEIGHT_FILES[1 if "blkio" in mounts.by_controller else 2]

    def keys(self, vm: VmTarget | None) -> Iterable[KnobKey]:
        return tuple(self.files(vm)) if vm is not None else ()

    def held(self, key: KnobKey, vm: VmTarget | None) -> int | None:
        """None once the scheduler's module is gone."""
        try:
            return _weight(read(self.descriptor(key, vm)))
        except VmVanished:
            self.drop(key)
            raise

    def put(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> None:
        write(self.descriptor(key, vm), str(checked_number(key, value)).encode())

    def paths(self, vm: VmTarget) -> Mapping[KnobKey, Path]:
        if vm.disk_folder is None:
            return {}
        return {
            KnobKey(vm.uuid, knob): vm.disk_folder / self._names[weighing]
            for weighing, knob in DISK_WEIGHTS.items()
            if weighing in self._names
        }


def weighing_of(paths: HostPaths, disk: str, number: str, cost: str) -> Weighing | None:
    """What makes weights act on a disk, by its name and ``MAJOR:MINOR``; None: nothing does. ``cost`` is the text of
    io.cost.qos, empty where there is none.
    """
    with contextlib.suppress(OSError):
        if "[bfq]" in (text_of(paths.block_devices / disk.replace("/", "!") / "queue/scheduler") or ""):
            return Weighing.BFQ
    for line in cost.splitlines():
        device, _, settings = line.partition(" ")
        if device == number and "enable=1" in settings.split():
            return Weighing.COST
    return None


def cost_text(mounts: CgroupMounts) -> str:
    """That of io.cost.qos; empty where there is none."""
    root, _ = mounts.by_controller.get("", (None, ""))
    with contextlib.suppress(OSError):
        return (text_of(root / COST_FILE) or "") if root else ""
    return ""


def _weight(text: bytes) -> int:
    """Of ``100``, or ``default 100`` before lines for single disks. Raises HostError."""
    first, _, _ = text.partition(b"\n")
    number = first.removeprefix(_DEFAULT)
    if b"\n" not in text or not number.isdigit():
        raise HostError(f"read: {text!r} is no weight", errno.EIO)
    return int(number)
