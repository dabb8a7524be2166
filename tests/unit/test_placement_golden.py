"""Where VMs go on the machines of tests/host/topologies, and why, compared with files in ``golden/placement``.

EQUIPOISE_REGENERATE_GOLDEN=1 writes them anew; read the diff.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from manager.control.placement import PlacementRequest, place
from manager.model.cpus import CpuSet, format_cpus
from manager.model.rules import PlacementRules
from manager.model.topology import Topology
from tests.host.topologies import NAMES, load
from tests.unit.placements import vm

GOLDEN = Path(__file__).parent / "golden" / "placement"
FEW = 6  # pCPUs that the crowd gets


def quiet(topology: Topology) -> list[PlacementRequest]:
    """Three critical VMs; the memory of one is on the last node."""
    last = max(cpu.node for cpu in topology.cpus)
    return [vm("cache", 0.1, 0.3, nodes=[last]), vm("db", 0.5, 0.4, 0.4, 0.3), vm("web", 0.2, 0.2)]


def crowd(_topology: Topology) -> list[PlacementRequest]:
    """Five critical VMs with eleven vCPUs."""
    return [
        vm("cache", 0.1, 0.3),
        vm("db", 0.5, 0.4, 0.4, 0.3),
        vm("mail", 0.05),
        vm("queue", 0.1, 0.1),
        vm("web", 0.2, 0.2),
    ]


def report(title: str, asked: Sequence[PlacementRequest], topology: Topology, cpus: CpuSet) -> Iterator[str]:
    """A placement for people to read: each vCPU with its demand."""
    found = place(asked, topology, cpus, {}, PlacementRules(), 0)
    wanted = {one.vm: one for one in asked}
    yield f"{title} on {len(cpus)} pCPUs: {format_cpus(cpus)}"
    for placed in found.vms:
        memory = "".join(f", memory on node {node}" for node in wanted[placed.vm].nodes)
        yield f"  {placed.vm}: stretch {placed.stretch:.2f}{memory}"
        for index, (need, vcpu) in enumerate(zip(wanted[placed.vm].vcpus, placed.vcpus, strict=True)):
            yield f"    vCPU {index} ({need.demand_pcpus:g}): {vcpu.why}"
    yield from (f"  {name}: {reason}" for name, reason in found.floating)


def describe(topology: Topology) -> str:
    """What of a host matters to placement."""
    counts = {
        "pCPUs": len(topology.cpus),
        "cores": len({cpu.core for cpu in topology.cpus}),
        "L3": len({cpu.l3 for cpu in topology.cpus}),
        "nodes": len({cpu.node for cpu in topology.cpus}),
    }
    text = ", ".join(f"{name}: {count}" for name, count in counts.items())
    interrupted, isolated = format_cpus(topology.interrupted), format_cpus(topology.isolated)
    return text + f"; IRQs: {interrupted or 'none'}" + (f"; isolated: {isolated}" if isolated else "")


@pytest.mark.parametrize("name", NAMES)
def test_plans(name) -> None:
    topology = load(name)
    cpus = topology.numbers - topology.isolated
    few = frozenset(sorted(cpus)[:FEW])
    lines = [
        f"{name}: {describe(topology)}",
        *report("quiet", quiet(topology), topology, cpus),
        *report("crowd", crowd(topology), topology, few),
    ]
    text = "\n".join(lines) + "\n"
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("EQUIPOISE_REGENERATE_GOLDEN") == "1":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_no_plan_is_left_of_a_machine_that_is_gone() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(NAMES)
