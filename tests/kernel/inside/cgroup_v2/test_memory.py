"""Protection and ceilings of memory on this kernel: what they change for a VM beside one that grows, and undone.

The group above all VMs has less memory than they want together, and what is taken from them goes to a disk in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from manager.errors import HostError
from manager.model.knobs import HOST_UUID, UNLIMITED, Knob, KnobKey
from manager.model.rules import MemoryRules
from tests.kernel.inside.cgroup_v2.conftest import CGROUPS, Vm, open_host, scope_name, start_process, try_write
from tests.kernel.inside.cgroup_v2.measuring import MeasuringAgent
from tests.kernel.inside.cgroup_v2.modules import end_swap, load_module, make_swap

MIB = 1 << 20
HELD_MIB, GROWTH_MIB, SPARE_MIB = 24, 24, 8
LIMITED = CGROUPS / "limited.slice"
MACHINE = LIMITED / "machine.slice"
DISK, DISK_KIB = Path("/dev/ram0"), 128 * 1024


@pytest.fixture(scope="module")
def swap() -> Iterator[None]:
    load_module("brd", f"rd_nr=1 rd_size={DISK_KIB}")
    make_swap(DISK, DISK_KIB * 1024)
    yield
    end_swap(DISK)


@pytest.fixture(scope="module")
def placed(systemd: None, swap: None) -> Iterator[tuple[Vm, Vm]]:
    """Two VMs with the memory controller, below a group that can be limited."""
    MACHINE.mkdir(parents=True)
    for group in (CGROUPS, LIMITED, MACHINE):
        (group / "cgroup.subtree_control").write_text("+memory")
    vms = [Vm(name, MACHINE / scope_name(number, name), start_process()) for number, name in ((8, "shop"), (9, "hog"))]
    for vm in vms:
        (vm.scope / "cgroup.subtree_control").write_text("+memory")
    yield vms[0], vms[1]
    for vm in vms:
        vm.process.kill()
        vm.leave()
    MACHINE.rmdir()
    LIMITED.rmdir()
    (CGROUPS / "cgroup.subtree_control").write_text("-memory")


@pytest.fixture
def shop(placed: tuple[Vm, Vm]) -> Iterator[Vm]:
    """A VM that has used its memory, and then not for a while."""
    placed[0].process.tell(f"hold {HELD_MIB}")
    yield placed[0]
    (LIMITED / "memory.max").write_text("max")
    for vm in placed:
        vm.process.tell("hold 0")
    for group in (MACHINE, *(group for vm in placed for group in (vm.scope, vm.scope / "libvirt"))):
        (group / "memory.low").write_text("0")
        (group / "memory.high").write_text("max")


@pytest.fixture
def hog(placed: tuple[Vm, Vm], shop: Vm) -> Vm:
    return placed[1]


def limit() -> None:
    """There is less than all want from now on."""
    current = int((LIMITED / "memory.current").read_text())
    (LIMITED / "memory.max").write_text(str(current + SPARE_MIB * MIB))


def swapped_mib(vm: Vm) -> float:
    return int((vm.scope / "memory.swap.current").read_text()) / MIB


def current_mib(vm: Vm) -> float:
    return int((vm.scope / "memory.current").read_text()) / MIB


def faults(vm: Vm) -> int:
    """How often it used a page that it did not have, also one that was on its way to the disk."""
    lines = dict(line.split() for line in (vm.scope / "memory.stat").read_text().splitlines())
    return int(lines["pgfault"])


def settings(*vms: Vm) -> dict[str, str]:
    groups = (MACHINE, *(group for vm in vms for group in (vm.scope, vm.scope / "libvirt")))
    return {f"{group}/{name}": (group / name).read_text() for group in groups for name in ("memory.low", "memory.high")}


@pytest.mark.parametrize("left_out", ["all", "nothing", "above", "scope", "inside"])
def test_a_critical_vm_keeps_its_pages_beside_one_that_grows(shop: Vm, hog: Vm, tmp_path: Path, left_out: str) -> None:
    """And only with the protection of all groups on the way: this hierarchy hands none down by itself."""
    before = settings(shop, hog)
    agent = MeasuringAgent(
        tmp_path / "journal.db", shop, hog, memory=MemoryRules(protect=left_out != "all", most_protected=0.9)
    )
    agent.tick(3)
    inner = shop.scope / "libvirt"
    protected = {group: int((group / "memory.low").read_text()) for group in (MACHINE, shop.scope, inner)}
    assert len(set(protected.values())) == 1
    assert (protected[inner] > HELD_MIB * MIB) == (left_out != "all")
    without = {"above": MACHINE, "scope": shop.scope, "inside": inner}.get(left_out)
    if without is not None:
        (without / "memory.low").write_text("0")
    limit()
    hog.process.tell(f"hold {GROWTH_MIB}")
    taken, known = swapped_mib(shop), faults(shop)
    shop.process.tell("touch")
    again = faults(shop) - known
    print(f"without {left_out}: {taken:.1f} MiB taken, {again} pages had to be had again")
    if left_out == "nothing":
        assert taken < 3 and again < 700, (taken, again)
    else:
        assert taken > 6 and again > 1500, (taken, again)
    if without is not None:
        (without / "memory.low").write_text(str(protected[without]))
    agent.loop.release("test")
    assert settings(shop, hog) == before
    assert not agent.journal.entries
    agent.end()


@pytest.mark.parametrize("ceilings", [False, True])
def test_a_vm_that_grows_is_held_while_a_critical_one_is_short(
    shop: Vm, hog: Vm, tmp_path: Path, ceilings: bool
) -> None:
    before = settings(shop, hog)
    agent = MeasuringAgent(tmp_path / "journal.db", shop, hog, memory=MemoryRules(ceilings=ceilings, headroom=0.05))
    agent.tick()
    limit()
    hog.process.tell(f"hold {GROWTH_MIB}")  # at the expense of the other
    shop.process.tell("touch")
    agent.tick()
    agent.tick()
    high = (hog.scope / "memory.high").read_text()
    assert (high == "max\n") != ceilings
    (LIMITED / "memory.max").write_text("max")
    hog.process.tell("touch")
    hog.process.tell(f"grow {2 * GROWTH_MIB}")
    size = current_mib(hog)
    print(f"ceiling {high.strip()}: {size:.1f} MiB in memory, {swapped_mib(hog):.1f} MiB taken from it")
    if ceilings:
        assert int(high) < 2 * GROWTH_MIB * MIB
        assert size < int(high) / MIB + 1
    else:
        assert size > 3 * GROWTH_MIB
    agent.loop.release("test")
    assert settings(shop, hog) == before
    agent.end()


def test_an_agent_that_was_killed_keeps_and_restores_what_it_protected(shop: Vm, hog: Vm, tmp_path: Path) -> None:
    before = settings(shop, hog)
    agent = MeasuringAgent(tmp_path / "journal.db", shop, hog, memory=MemoryRules(protect=True, most_protected=0.9))
    agent.tick(3)
    protected = settings(shop, hog)
    assert protected != before
    agent.end()
    agent.start()
    agent.tick()
    assert settings(shop, hog) == protected
    agent.end()
    agent.start()
    agent.loop.release("test")
    assert settings(shop, hog) == before
    agent.end()


def test_each_setting_is_written_read_back_and_undone(shop: Vm, hog: Vm) -> None:
    host = open_host(shop, hog)
    agent_of = {vm.process.uuid: vm for vm in (shop, hog)}
    for uuid, vm in agent_of.items():
        own = host.knobs(vm.instance, Knob.MEMORY_CEILING.spec.family)
        assert KnobKey(uuid, Knob.MEMORY_CEILING) in own
        assert [key.index for key in own if key.knob is Knob.MEMORY_PROTECTION and key.uuid == uuid] == [0, 1]
        assert len([key for key in own if key.uuid == HOST_UUID]) == 2  # both slices
        for key, value in own.items():
            instance = host.itself if key.uuid == HOST_UUID else vm.instance
            for amount in (64 * MIB, UNLIMITED, 0 if key.knob is Knob.MEMORY_PROTECTION else 96 * MIB, value):
                assert host.write(instance, key, amount) == amount
    with pytest.raises(HostError):
        host.write(shop.instance, KnobKey(shop.process.uuid, Knob.MEMORY_CEILING), -2)
    host.forget(frozenset())


def test_a_setting_of_another_tool_is_left(shop: Vm, hog: Vm, tmp_path: Path) -> None:
    agent = MeasuringAgent(tmp_path / "journal.db", shop, hog, memory=MemoryRules(protect=True, most_protected=0.9))
    agent.tick(3)
    assert try_write(shop.scope / "memory.low", 7 * MIB) == 0
    agent.tick(3)
    assert (shop.scope / "memory.low").read_text() == f"{7 * MIB}\n"
    agent.assignment = replace(agent.assignment, vms=(replace(agent.assignment.vms[0], adoptions=1),))
    agent.tick(2)
    assert int((shop.scope / "memory.low").read_text()) > HELD_MIB * MIB
    agent.loop.release("test")
    assert (shop.scope / "memory.low").read_text() == f"{7 * MIB}\n"
    agent.end()
