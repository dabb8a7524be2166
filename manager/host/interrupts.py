"""Which pCPUs the interrupts of network interfaces may be delivered to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from manager.errors import HostError
from manager.host.knob_files import VmTarget, checked_cpus
from manager.host.process import refusal
from manager.host.registry import HostPaths
from manager.model.cpus import CpuSet, format_cpus, parse_cpus
from manager.model.knobs import HOST_UUID, Knob, KnobKey, KnobValue
from manager.model.topology import NicQueue

AFFINITY_FILE = "smp_affinity_list"


def read_affinity(paths: HostPaths, irq: int) -> CpuSet | None:
    """The pCPUs (Documentation/core-api/irq/irq-affinity.rst), None where the interrupt is gone. Raises HostError."""
    try:
        return parse_cpus((paths.irq(irq) / AFFINITY_FILE).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise HostError(f"affinity of interrupt {irq}: {error}", getattr(error, "errno", None) or 0) from error


class Interrupts:
    """``KnobFiles`` of the interrupts of ``queues``."""

    def __init__(self, paths: HostPaths, queues: Callable[[], Sequence[NicQueue]]) -> None:
        self._paths = paths
        self._queues = queues

    def read(self, _vm: VmTarget | None) -> Mapping[KnobKey, KnobValue]:
        """The affinity of each. Raises HostError."""
        affinities = ((queue.irq, read_affinity(self._paths, queue.irq)) for queue in self._queues())
        return {KnobKey(HOST_UUID, Knob.IRQ_AFFINITY, irq): held for irq, held in affinities if held is not None}

    def write(self, key: KnobKey, value: KnobValue, _vm: VmTarget | None) -> KnobValue:
        """Let an interrupt be delivered to pCPUs and return what is then read back.

        Raises VmVanished when the interrupt is gone, and HostError when the kernel refuses: EIO for an interrupt whose
        affinity it manages itself, EINVAL where none of the pCPUs is online.
        """
        wanted = checked_cpus(key, value)
        try:
            (self._paths.irq(key.index) / AFFINITY_FILE).write_text(format_cpus(wanted))
        except OSError as error:
            raise refusal(f"affinity of interrupt {key.index}", error) from error
        held = read_affinity(self._paths, key.index)
        return wanted if held is None else held
