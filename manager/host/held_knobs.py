"""Knobs of VMs that are one file each, held open while the VM runs."""

from __future__ import annotations

import errno
import os
import weakref
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from manager.errors import VmVanished
from manager.host.files import open_file
from manager.host.knob_files import KnobFiles, VmTarget
from manager.model.knobs import KnobKey

Descriptors = dict[KnobKey, int]


class HeldKnobs(KnobFiles):
    """A file that is not there yet is looked for at each reading: a controller may be enabled, a module be loaded."""

    def __init__(self) -> None:
        """Nothing is opened yet."""
        self._held: dict[str, tuple[Mapping[KnobKey, Path], Descriptors]] = {}
        weakref.finalize(self, _close_all, self._held)

    @abstractmethod
    def paths(self, vm: VmTarget) -> Mapping[KnobKey, Path]:
        """The files that a VM may have. Raises VmVanished, HostError."""

    def files(self, vm: VmTarget) -> Mapping[KnobKey, int]:
        """The descriptors of those that are there, in the order of ``paths``. Raises VmVanished, HostError."""
        if vm.uuid not in self._held:
            self._held[vm.uuid] = self.paths(vm), {}
        paths, descriptors = self._held[vm.uuid]
        if len(descriptors) < len(paths):
            for key, path in paths.items():
                if key not in descriptors and path.exists():
                    descriptors[key] = open_file(path, os.O_RDWR)
        return descriptors

    def descriptor(self, key: KnobKey, vm: VmTarget | None) -> int:
        """Raises VmVanished, HostError."""
        found = None if vm is None else self.files(vm).get(key)
        if found is None:
            raise VmVanished(f"there is no file for {key.knob} {key.index}", errno.ENOENT)
        return found

    def drop(self, key: KnobKey) -> None:
        """Close a file that ended."""
        _, descriptors = self._held.get(key.uuid, ({}, {}))
        if key in descriptors:
            os.close(descriptors.pop(key))

    def forget(self, uuid: str) -> None:
        """Close the files of a VM that ended."""
        _, descriptors = self._held.pop(uuid, ({}, {}))
        close(descriptors)


def close(descriptors: Descriptors) -> None:
    """Close all; may be called twice."""
    while descriptors:
        os.close(descriptors.popitem()[1])


def _close_all(held: dict[str, tuple[Mapping[KnobKey, Path], Descriptors]]) -> None:
    for _, descriptors in held.values():
        close(descriptors)
