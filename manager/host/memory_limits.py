"""Protection and ceiling of the memory of VMs, and the protection of the groups above them, from files held open.

cgroup v2 hands protection down: a group is protected as far as all groups above it are, and, unless the hierarchy is
mounted with ``memory_recursiveprot``, those inside it as far as they say so themselves. libvirt's processes are in a
group ``libvirt`` inside the scope, so that has the same. v1 has a soft limit for a ceiling, and for protection the
swappiness of each group, which is not handed down.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host.cgroup import CgroupMounts, groups_above_vms
from manager.host.files import inode, open_file, read, text_of, write
from manager.host.held_knobs import HeldKnobs, close
from manager.host.knob_files import VmTarget, checked_number
from manager.host.registry import (
    HARD_LIMIT_FILE,
    MEMORY_HIGH_FILE,
    MEMORY_LOW_FILE,
    SOFT_LIMIT_FILE,
    SWAPPINESS_FILE,
)
from manager.model.knob_spec import KnobValue
from manager.model.knobs import HOST_UUID, UNLIMITED, Knob, KnobKey

_INNER = "libvirt"
_ID_MASK = 2**31 - 1
_V1_UNLIMITED = 1 << 62
"""v1 shows what is not limited as all pages that a counter can count: mm/page_counter.c."""


class MemoryLimits(HeldKnobs):
    """``memory.low`` and ``memory.high``, or v1's swappiness and soft limit. Belongs to the control loop's thread."""

    def __init__(self, mounts: CgroupMounts) -> None:
        """Nothing is opened yet."""
        super().__init__()
        v1 = "memory" in mounts.by_controller
        mount = mounts.by_controller.get("memory" if v1 else "")
        self._root = mount[0] if mount else None
        self._ceiling_file = SOFT_LIMIT_FILE if v1 else MEMORY_HIGH_FILE
        self._protects = not v1
        self._unlimited = b"-1" if v1 else b"max"
        self._above: dict[str, tuple[KnobKey, ...]] = {}
        self._groups: dict[KnobKey, int] = {}
        self._looked = False
        weakref.finalize(self, close, self._groups)

    def keys(self, vm: VmTarget | None) -> Iterable[KnobKey]:
        """Of a VM: its ceiling, the protection of its own groups, and under HOST_UUID of those above, from the
        outermost on. Of the host: that of all groups above VMs that were seen, or had any when first looked at.
        """
        if vm is None:
            self._look()
            return tuple(self._groups)
        files = self.files(vm)
        return (*self._groups_above(vm), *files) if files else ()

    def held(self, key: KnobKey, vm: VmTarget | None) -> int | None:
        """UNLIMITED for all there is. A group that is gone is closed."""
        try:
            return _amount(read(self._file(key, vm)))
        except VmVanished:
            if key in self._groups:
                os.close(self._groups.pop(key))
            self.drop(key)
            raise

    def put(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> None:
        """Whole pages: the kernel rounds down what is none."""
        wanted = checked_number(key, value)
        write(self._file(key, vm), self._unlimited if wanted == UNLIMITED else str(wanted).encode())

    def paths(self, vm: VmTarget) -> Mapping[KnobKey, Path]:
        folder = vm.memory_folder
        if folder is None or self._root is None:
            return {}
        paths = {KnobKey(vm.uuid, Knob.MEMORY_CEILING): folder / self._ceiling_file}
        own = tuple(enumerate((folder, folder / _INNER)))
        if self._protects:  # which may be enabled later
            paths |= {KnobKey(vm.uuid, Knob.MEMORY_PROTECTION, place): group / MEMORY_LOW_FILE for place, group in own}
        elif not any(_has_limit(group) for _, group in own):
            there = ((place, group / SWAPPINESS_FILE) for place, group in own)
            paths |= {KnobKey(vm.uuid, Knob.SWAPPINESS, place): file for place, file in there if file.exists()}
        return paths

    def forget(self, uuid: str) -> None:
        self._above.pop(uuid, None)
        super().forget(uuid)

    def _file(self, key: KnobKey, vm: VmTarget | None) -> int:
        if key.uuid != HOST_UUID:
            return self.descriptor(key, vm)
        self._look()
        if key not in self._groups:
            raise VmVanished(f"there is no group for {key.knob} {key.index}", errno.ENOENT)
        return self._groups[key]

    def _groups_above(self, vm: VmTarget) -> tuple[KnobKey, ...]:
        """Looked for once a VM has files of its own: then all of them have theirs."""
        above = self._above.get(vm.uuid)
        if above is None:
            groups = reversed(vm.memory_folder.parents) if self._protects and vm.memory_folder else ()
            inside = [group for group in groups if self._root in group.parents]
            above = tuple(key for group in inside if (key := self._group_above(group)) is not None)
            self._above[vm.uuid] = above
        return above

    def _group_above(self, folder: Path) -> KnobKey | None:
        """None for a group without the controller."""
        if not (folder / MEMORY_LOW_FILE).exists():
            return None
        key = KnobKey(HOST_UUID, Knob.MEMORY_PROTECTION, inode(folder) & _ID_MASK)
        if key not in self._groups:
            self._groups[key] = open_file(folder / MEMORY_LOW_FILE, os.O_RDWR)
        return key

    def _look(self) -> None:
        """For groups that an agent before this one may have protected."""
        if self._looked or self._root is None or not self._protects:
            return
        for folder in groups_above_vms(self._root):
            with contextlib.suppress(VmVanished):
                known = frozenset(self._groups)
                key = self._group_above(folder)
                if key is not None and key not in known and not _amount(read(self._groups[key])):
                    os.close(self._groups.pop(key))
        self._looked = True


def _has_limit(group: Path) -> bool:
    """Whether a v1 group has a limit of its own: if nothing of it can be swapped out, the kernel ends it there."""
    text = text_of(group / HARD_LIMIT_FILE)
    return text is not None and _amount(text.encode() + b"\n") != UNLIMITED


def _amount(text: bytes) -> int:
    """Raises HostError for what is cut short or no number: a part of one would pass for another."""
    if text == b"max\n":
        return UNLIMITED
    if not text.endswith(b"\n") or not text[:-1].isdigit():
        raise HostError(f"read: {text!r} is no amount of memory", errno.EIO)
    amount = int(text)
    return UNLIMITED if amount >= _V1_UNLIMITED else amount
