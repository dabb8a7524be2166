"""On which NUMA nodes a VM's memory is, on trees: this machine may have one node only."""

from __future__ import annotations

from pathlib import Path

import pytest

from manager.host.cgroup import memory_nodes
from manager.host.registry import HostPaths

V1 = "total=100 N0=5 N1=95\nfile=90 N0=90 N1=0\n"
V2 = "anon N0=4096 N1=409600\nfile N0=409600 N1=0\n"


def tree(root: Path, nodes: str = "0-1", allowed: str = "0-1") -> HostPaths:
    paths = HostPaths(root)
    paths.online_nodes.parent.mkdir(parents=True)
    paths.online_nodes.write_text(nodes + "\n")
    paths.process(7).mkdir(parents=True)
    (paths.process(7) / "status").write_text(f"Name:\tqemu\nMems_allowed:\t3\nMems_allowed_list:\t{allowed}\n")
    return paths


@pytest.mark.parametrize(
    ("nodes", "allowed", "stat", "found"),
    [
        ("0", "0", V1, set()),
        ("0-1", "1", V1, {1}),
        ("0-1", "0", V1, {0}),
        ("0-1", "0-1", V1, {1}),
        ("0-1", "0-1", V2, {1}),
        ("0-1", "0-1", "total=100 N0=50 N1=50\n", set()),
        ("0-1", "0-1", "total=0 N0=0 N1=0\n", set()),
        ("0-1", "0-1", "", set()),
        ("0-1", "0-1", None, set()),
        ("0-3", "0-1", V1, {0, 1}),
        ("0-1", "nonsense", V1, {1}),
    ],
)
def test_nodes(tmp_path: Path, nodes: str, allowed: str, stat: str | None, found: set[int]) -> None:
    paths = tree(tmp_path, nodes, allowed)
    file = tmp_path / "memory.numa_stat"
    if stat is not None:
        file.write_text(stat)
    assert memory_nodes(paths, 7, file) == found


def test_a_process_that_is_gone_and_a_kernel_without_nodes(tmp_path: Path) -> None:
    assert memory_nodes(tree(tmp_path), 8, None) == set()
    assert memory_nodes(HostPaths(tmp_path / "nothing"), 7, None) == set()
