"""What a file of this package offers for a family of knobs, and what several of them need."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from manager.errors import HostError, VmVanished
from manager.model.cpus import CpuSet
from manager.model.knobs import KnobKey, KnobValue


@dataclass(frozen=True, slots=True)
class VmTarget:
    """A VM whose process is known to run: its own CPU cgroup, None where it has none, and its vCPU threads."""

    uuid: str
    folder: Path | None
    vcpus: Sequence[tuple[int, int]]

    def thread(self, key: KnobKey) -> int:
        """The thread of the vCPU that a knob is of. Raises VmVanished."""
        tid = dict(self.vcpus).get(key.index)
        if tid is None:
            raise VmVanished(f"there is no vCPU {key.index}", errno.ESRCH)
        return tid

    @property
    def group(self) -> Path:
        """Its CPU cgroup. Raises HostError where it has none of its own."""
        if self.folder is None:
            raise HostError("the VM has no CPU cgroup of its own", errno.ENOENT)
        return self.folder


class KnobFiles(Protocol):
    """Reads and writes the knobs of a family; ``vm`` None: those of the host itself."""

    def read(self, vm: VmTarget | None) -> Mapping[KnobKey, KnobValue]:
        """All there are now; what ended is not among them. Raises HostError."""
        ...

    def write(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> KnobValue:
        """Set one and return what it then holds. Raises VmVanished, HostError."""
        ...


def checked_number(key: KnobKey, value: KnobValue) -> int:
    """A value that is one of the knob's. Raises HostError."""
    objection = key.knob.spec.value.objection(value)
    if objection or not isinstance(value, int):
        raise HostError(f"{key.knob} {objection}", errno.EINVAL)
    return value


def checked_cpus(key: KnobKey, value: KnobValue) -> CpuSet:
    """The same of a set of pCPUs. Raises HostError."""
    if isinstance(value, int):
        raise HostError(f"{key.knob} {key.knob.spec.value.objection(value)}", errno.EINVAL)
    return value
