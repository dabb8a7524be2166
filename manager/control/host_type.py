"""Hosts of one type: what an application stands beside batch VMs on one of them, it stands on all of them."""

from __future__ import annotations

from manager.model.host import Capabilities
from manager.model.numbers import digits

MOST_TYPE_CHARACTERS = 200


def host_type(host: str, capabilities: Capabilities) -> str:
    """CPU model, pCPUs, sockets and threads a core, such as ``Example CPU, 16 pCPUs, 1 socket, 2 threads a core``.

    The kernel is not part of it, so that tables outlast its updates. A host whose CPU model is not known is a type of
    its own.
    """
    cpus = capabilities.topology.cpus
    online, managed = len(capabilities.online_cpus), len(capabilities.managed_cpus)
    model = capabilities.cpu_model or f"unknown CPU of {host}"
    pcpus = f"{online} pCPUs" if managed == online else f"{managed} of {online} pCPUs"
    parts = [model[:MOST_TYPE_CHARACTERS], pcpus]
    if cpus:
        sockets = len({cpu.socket for cpu in cpus})
        threads = len(cpus) / len({cpu.core for cpu in cpus})
        parts += [
            f"{sockets} socket{'s' * (sockets > 1)}",
            f"{digits(threads)} thread{'s' * (threads > 1)} a core",
        ]
    return ", ".join(parts)
