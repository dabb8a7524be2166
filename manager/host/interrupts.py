"""Which pCPUs an interrupt may be delivered to."""

from __future__ import annotations

import errno

from manager.errors import HostError
from manager.host.process import refusal
from manager.host.registry import HostPaths
from manager.model.cpus import CpuSet, format_cpus, parse_cpus
from manager.model.knobs import KnobValue

AFFINITY_FILE = "smp_affinity_list"


def read_affinity(paths: HostPaths, irq: int) -> CpuSet | None:
    """The pCPUs (Documentation/core-api/irq/irq-affinity.rst), None where the interrupt is gone. Raises HostError."""
    try:
        return parse_cpus((paths.irq(irq) / AFFINITY_FILE).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise HostError(f"affinity of interrupt {irq}: {error}", getattr(error, "errno", None) or 0) from error


def write_affinity(paths: HostPaths, irq: int, cpus: KnobValue) -> KnobValue:
    """Let an interrupt be delivered to ``cpus`` and return what is then read back.

    Raises VmVanished when the interrupt is gone, and HostError when the kernel refuses: EIO for an interrupt whose
    affinity it manages itself, EINVAL where none of the pCPUs is online.
    """
    if isinstance(cpus, int):
        raise HostError(f"interrupt {irq} takes pCPUs, not {cpus!r}", errno.EINVAL)
    try:
        (paths.irq(irq) / AFFINITY_FILE).write_text(format_cpus(cpus))
    except OSError as error:
        raise refusal(f"affinity of interrupt {irq}", error) from error
    held = read_affinity(paths, irq)
    return cpus if held is None else held
