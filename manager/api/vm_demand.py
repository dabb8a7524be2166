"""What a VM wants to use of the CPU, by what its host reported."""

from __future__ import annotations

from manager.model.cpus import parse_cpus
from manager.model.job import BatchVm
from manager.protocol.report import VmStatus
from manager.store.models import HostRow


def pcpus_of(host: HostRow) -> int:
    """The number of a host's online pCPUs; 0: it never reported."""
    return len(parse_cpus((host.capabilities or {}).get("online_cpus", "")))


def wanted_pcpus(status: VmStatus, batch: BatchVm | None, pcpus: int) -> float:
    """CPU seconds a second: of a batch VM what it uses alone, of others what they ran and waited for.

    ``pcpus`` are those of its host.
    """
    if batch is not None:
        return batch.alone_pcpus or batch.would_pcpus
    used = status.cpu_share * pcpus
    return max(used, min(used + status.run_delay_share, status.vcpus))
