"""How many requests per second a VM may make of a disk: limits of its control group, which any scheduler keeps."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host.cgroup import CgroupMounts
from manager.host.files import text_of, write
from manager.host.held_knobs import HeldKnobs
from manager.host.knob_files import VmTarget, checked_number
from manager.host.registry import DISK_CEILING_FILES, HostPaths
from manager.model.knob_spec import KnobValue
from manager.model.knobs import UNEVEN, UNLIMITED, Knob, KnobKey

LOOK_EVERY_S = 5.0
"""Disks that are plugged are seen so late."""
_LIMIT = re.compile(r"^(\d+):(\d+) (.*)$")
_MOST_BYTES = 65536


class DiskCeilings(HeldKnobs):
    """By number of the disk (makedev(3)). Belongs to the control loop's thread.

    Reads and writes have the same ceiling. Where they have different ones, which another tool gave them or a crash amid
    a write left, it is UNEVEN.
    """

    def __init__(self, paths: HostPaths, mounts: CgroupMounts, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is opened yet."""
        super().__init__()
        self._paths = paths
        self._names = DISK_CEILING_FILES[1 if "blkio" in mounts.by_controller else 2]
        self._clock = clock
        self._looked: tuple[float, frozenset[int]] | None = None

    def paths(self, vm: VmTarget) -> Mapping[KnobKey, Path]:
        """The files that hold the ceilings of all disks: numbered, as each is one of the VM's."""
        if vm.disk_folder is None:
            return {}
        return {
            KnobKey(vm.uuid, Knob.DISK_CEILING, place): vm.disk_folder / name for place, name in enumerate(self._names)
        }

    def keys(self, vm: VmTarget | None) -> Iterable[KnobKey]:
        return tuple(self._ceilings(vm)) if vm is not None else ()

    def read(self, vm: VmTarget | None) -> dict[KnobKey, KnobValue]:
        """One reading of the files has those of all disks."""
        return dict(self._ceilings(vm)) if vm is not None else {}

    def held(self, key: KnobKey, vm: VmTarget | None) -> int | None:
        return self._ceilings(vm).get(key) if vm is not None else None

    def put(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> None:
        ceiling = checked_number(key, value)
        files = self.files(vm) if vm is not None else {}
        if not files:
            raise VmVanished("the VM's group has no limits of disks", errno.ENOENT)
        disk = f"{os.major(key.index)}:{os.minor(key.index)}"
        if len(files) == 1:  # v2
            amount = "max" if ceiling == UNLIMITED else str(ceiling)
            texts = [f"{disk} riops={amount} wiops={amount}"]
        else:
            texts = [f"{disk} {0 if ceiling == UNLIMITED else ceiling}"] * len(files)
        for descriptor, text in zip(files.values(), texts, strict=True):
            write(descriptor, text.encode())

    def _ceilings(self, vm: VmTarget) -> dict[KnobKey, int]:
        """Of all disks."""
        files = list(self.files(vm).values())
        if len(files) != len(self._names):
            return {}
        texts = [_text(descriptor) for descriptor in files]
        limits = (
            [_of_v2(texts[0], name) for name in ("riops", "wiops")] if len(files) == 1 else list(map(_of_v1, texts))
        )
        reads, writes = limits
        return {
            KnobKey(vm.uuid, Knob.DISK_CEILING, number): _both(reads.get(number), writes.get(number))
            for number in sorted(self._disks() | reads.keys() | writes.keys())
        }

    def _disks(self) -> frozenset[int]:
        now_s = self._clock()
        if self._looked is None or now_s >= self._looked[0] + LOOK_EVERY_S:
            self._looked = now_s, numbers_of_disks(self._paths)
        return self._looked[1]


def _both(reads: int | None, writes: int | None) -> int:
    if reads != writes:
        return UNEVEN
    return UNLIMITED if reads is None else reads


def numbers_of_disks(paths: HostPaths) -> frozenset[int]:
    """Of the whole disks of the host (Documentation/ABI/stable/sysfs-block)."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for folder in paths.block_devices.iterdir():
            with contextlib.suppress(OSError, ValueError):
                found.add(number_of_disk(text_of(folder / "dev") or ""))
    return frozenset(found)


def number_of_disk(text: str) -> int:
    """Of ``MAJOR:MINOR``. Raises ValueError."""
    major, _, minor = text.strip().partition(":")
    return os.makedev(int(major), int(minor))


def _text(descriptor: int) -> str:
    try:
        return os.pread(descriptor, _MOST_BYTES, 0).decode()
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise VmVanished("the VM's group is gone", errno.ENODEV) from error
        raise HostError(f"limits of disks: {error.strerror}", error.errno or 0) from error


def _of_v2(text: str, name: str) -> dict[int, int]:
    """Of lines such as ``8:16 rbps=max wbps=max riops=120 wiops=max``. Raises HostError."""
    limits: dict[int, int] = {}
    for line in text.splitlines():
        number, rest = _parted(line)
        values = dict(word.partition("=")[::2] for word in rest.split())
        if values.get(name, "max") != "max":
            limits[number] = _number(values[name], line)
    return limits


def _of_v1(text: str) -> dict[int, int]:
    """Of lines such as ``8:16 120``. Raises HostError."""
    return {number: _number(rest, line) for line in text.splitlines() for number, rest in [_parted(line)]}


def _parted(line: str) -> tuple[int, str]:
    found = _LIMIT.match(line)
    if found is None:
        raise HostError(f"read: {line!r} is no limit of a disk", errno.EIO)
    return os.makedev(int(found[1]), int(found[2])), found[3]


def _number(text: str, line: str) -> int:
    if not text.isdigit():
        raise HostError(f"read: {line!r} is no limit of a disk", errno.EIO)
    return int(text)
