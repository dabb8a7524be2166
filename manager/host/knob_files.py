"""What a file of this package does for a family of knobs; and the affinity of interrupts."""

from __future__ import annotations

import contextlib
import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from manager.errors import HostError, VmVanished
from manager.host.files import refused
from manager.host.registry import HostPaths
from manager.model.cpus import CpuSet, format_cpus, parse_cpus
from manager.model.knob_spec import KnobValue
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.topology import NicQueue

AFFINITY_FILE = "smp_affinity_list"


@dataclass(frozen=True, slots=True)
class VmTarget:
    """A VM whose process is known to run: its own CPU cgroup, None where it has none, its vCPU threads, and the
    groups with its memory and of its disk I/O, None where it has none.
    """

    uuid: str
    folder: Path | None
    vcpus: Sequence[tuple[int, int]]
    memory_folder: Path | None = None
    disk_folder: Path | None = None

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


class KnobFiles(ABC):
    """Reads and writes the knobs of a family; ``vm`` None: those of the host itself."""

    @abstractmethod
    def keys(self, vm: VmTarget | None) -> Iterable[KnobKey]:
        """Those there may be. Raises HostError."""

    @abstractmethod
    def held(self, key: KnobKey, vm: VmTarget | None) -> KnobValue | None:
        """What one holds now, None where there is no such thing (any more). Raises VmVanished, HostError."""

    @abstractmethod
    def put(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> None:
        """Set one. Raises VmVanished, HostError."""

    def read(self, vm: VmTarget | None) -> dict[KnobKey, KnobValue]:
        """All there are now; what ended is not among them. Raises HostError."""
        values: dict[KnobKey, KnobValue] = {}
        for key in self.keys(vm):
            with contextlib.suppress(VmVanished):
                value = self.held(key, vm)
                if value is not None:
                    values[key] = value
        return values

    def write(self, key: KnobKey, value: KnobValue, vm: VmTarget | None) -> KnobValue:
        """Set one and return what it then holds. Raises VmVanished, HostError."""
        self.put(key, value, vm)
        held = self.held(key, vm)
        if held is None:
            raise VmVanished(f"{key.knob} {key.index} is gone", errno.ESRCH)
        return held


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


def read_affinity(paths: HostPaths, irq: int) -> CpuSet | None:
    """pCPUs of an interrupt (Documentation/core-api/irq/irq-affinity.rst), None where it is gone. Raises HostError."""
    try:
        return parse_cpus((paths.irq(irq) / AFFINITY_FILE).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise HostError(f"affinity of interrupt {irq}: {error}", getattr(error, "errno", None) or 0) from error


class Interrupts(KnobFiles):
    """Which pCPUs the interrupts of network interfaces, those of ``queues``, may be delivered to.

    The kernel refuses with EIO for an interrupt whose affinity it manages itself, EINVAL where none of the pCPUs is
    online.
    """

    def __init__(self, paths: HostPaths, queues: Callable[[], Sequence[NicQueue]]) -> None:
        self._paths = paths
        self._queues = queues

    def keys(self, _vm: VmTarget | None) -> Iterable[KnobKey]:
        return (KnobKey(HOST_UUID, Knob.IRQ_AFFINITY, queue.irq) for queue in self._queues())

    def held(self, key: KnobKey, _vm: VmTarget | None) -> CpuSet | None:
        return read_affinity(self._paths, key.index)

    def put(self, key: KnobKey, value: KnobValue, _vm: VmTarget | None) -> None:
        text = format_cpus(checked_cpus(key, value))
        with refused(f"affinity of interrupt {key.index}"):
            (self._paths.irq(key.index) / AFFINITY_FILE).write_text(text)
