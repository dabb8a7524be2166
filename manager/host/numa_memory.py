"""On which NUMA nodes a VM's memory is."""

from __future__ import annotations

import re
from pathlib import Path

from manager.host import process
from manager.host.registry import HostPaths
from manager.model.cpus import parse_cpus

_MOST = 0.8
"""Nodes that hold this share of a VM's memory are where it is."""
_NODE = re.compile(r"\bN(\d+)=(\d+)")


def memory_nodes(paths: HostPaths, pid: int, resident_file: Path | None) -> frozenset[int]:
    """The nodes it is bound to, or else the one that holds most of it; empty where it is on many, or not known.

    ``resident_file`` is the memory.numa_stat of its cgroup. A host with one node has none to choose from.
    """
    online = _online_nodes(paths)
    if len(online) < 2:
        return frozenset()
    bound = process.bound_memory_nodes(paths, pid) & online
    if bound and bound != online:
        return bound
    by_node = _resident(resident_file) if resident_file else {}
    total = sum(by_node.values())
    return frozenset(node for node, held in by_node.items() if total and held >= _MOST * total)


def _online_nodes(paths: HostPaths) -> frozenset[int]:
    try:
        return parse_cpus(paths.online_nodes.read_text())
    except (OSError, ValueError):  # a kernel without NUMA
        return frozenset()


def _resident(file: Path) -> dict[int, int]:
    """Memory by node: v1's line of all of it (pages), or v2's of anonymous memory (bytes)."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        if line.startswith(("total=", "anon ")):
            return {int(node): int(held) for node, held in _NODE.findall(line)}
    return {}
