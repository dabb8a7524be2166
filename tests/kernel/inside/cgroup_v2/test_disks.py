"""Weights and ceilings of disks on this kernel: what they change beside a VM that reads as much as it can, and undone.

The disk answers each request a millisecond later, one at a time; its scheduler is BFQ.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from manager.errors import HostError
from manager.host.registry import HostPaths
from manager.model.knob_spec import Family
from manager.model.knobs import DISK_WEIGHTS, UNLIMITED, Knob, KnobKey
from manager.model.resource_use import Weighing
from manager.model.rules import DiskRules
from tests.kernel.inside.cgroup_v2.conftest import CGROUPS, Vm, open_host, scope_name, start_process
from tests.kernel.inside.cgroup_v2.measuring import MeasuringAgent
from tests.kernel.inside.cgroup_v2.modules import load_module

SLICE = CGROUPS / "disks.slice"
DISK = Path("/dev/nullb0")
QUEUE = HostPaths(Path("/")).block_devices / "nullb0/queue"
SCHEDULER = QUEUE / "scheduler"
READERS, READ_S = 2, 3.0
WEIGHTED = DiskRules(weights=True)


@pytest.fixture(scope="module")
def disk(null_blk: None) -> Iterator[Path]:
    load_module("bfq")
    SCHEDULER.write_text("bfq")
    yield DISK
    SCHEDULER.write_text("none")


@pytest.fixture(scope="module")
def placed(systemd: None, disk: Path) -> Iterator[tuple[Vm, Vm]]:
    """Two VMs with the I/O controller."""
    SLICE.mkdir()
    for group in (CGROUPS, SLICE):
        (group / "cgroup.subtree_control").write_text("+io")
    vms = [Vm(name, SLICE / scope_name(number, name), start_process()) for number, name in ((6, "shop"), (7, "hog"))]
    yield vms[0], vms[1]
    for vm in vms:
        vm.process.kill()
        vm.leave()
    SLICE.rmdir()
    (CGROUPS / "cgroup.subtree_control").write_text("-io")


@pytest.fixture
def vms(placed: tuple[Vm, Vm]) -> Iterator[tuple[Vm, Vm]]:
    """Both read as much as they can. BFQ prefers nobody for having begun a moment ago."""
    (QUEUE / "iosched/low_latency").write_text("0")
    for vm in placed:
        for _ in range(READERS):
            vm.process.tell(f"read {DISK}")
    yield placed
    SCHEDULER.write_text("bfq")
    for vm in placed:
        vm.process.tell("rest")
        (vm.scope / "io.bfq.weight").write_text("100")


def requests(vm: Vm) -> int:
    for line in (vm.scope / "io.stat").read_text().splitlines():
        fields = dict(part.split("=") for part in line.split()[1:])
        if fields:
            return int(fields["rios"])
    return 0


def shares(*vms: Vm) -> list[float]:
    """Requests a second of each."""
    before = [requests(vm) for vm in vms]
    time.sleep(READ_S)
    return [(requests(vm) - then) / READ_S for vm, then in zip(vms, before, strict=True)]


def weights(*vms: Vm) -> list[str]:
    return [(vm.scope / "io.bfq.weight").read_text().split()[-1] for vm in vms]


def test_a_critical_vm_gets_more_of_a_disk_that_both_want(vms: tuple[Vm, Vm], tmp_path: Path) -> None:
    """By the weights: the other way round the other one does. Equal ones mean little to BFQ on a disk that is fast."""
    agent = MeasuringAgent(tmp_path / "journal.db", *vms, disk=WEIGHTED)
    agent.tick()
    time.sleep(1.0)
    equal = shares(*vms)
    agent.tick()
    time.sleep(0.5)
    agent.tick(2)
    assert weights(*vms) == ["1000", "20"]
    time.sleep(0.5)
    weighted = shares(*vms)
    agent.loop.release("test")
    assert weights(*vms) == ["100", "100"]
    assert not agent.journal.entries
    agent.end()
    for vm, weight in zip(vms, ("20", "1000"), strict=True):
        (vm.scope / "io.bfq.weight").write_text(weight)
    time.sleep(0.5)
    reversed_ = shares(*vms)
    print(f"equal: {equal}, weighted: {weighted}, the other way round: {reversed_} requests/s")
    assert weighted[0] > 0.9 * sum(weighted)
    assert 0 < reversed_[0] < 0.1 * sum(reversed_)


def test_nothing_is_set_where_weights_do_not_act(vms: tuple[Vm, Vm], tmp_path: Path) -> None:
    SCHEDULER.write_text("none")
    agent = MeasuringAgent(tmp_path / "journal.db", *vms, disk=WEIGHTED)
    for _ in range(3):
        agent.tick()
        time.sleep(0.3)
    agent.tick()
    assert weights(*vms) == ["100", "100"]
    assert not agent.journal.entries
    agent.end()


def test_weights_are_given_back_when_the_scheduler_changes(vms: tuple[Vm, Vm], tmp_path: Path) -> None:
    agent = MeasuringAgent(tmp_path / "journal.db", *vms, disk=WEIGHTED)
    for _ in range(3):
        agent.tick()
        time.sleep(0.5)
    agent.tick()
    assert weights(*vms) == ["1000", "20"]
    SCHEDULER.write_text("none")
    agent.tick(2)
    assert weights(*vms) == ["100", "100"]
    agent.end()


def test_each_weight_is_written_read_back_and_undone(vms: tuple[Vm, Vm]) -> None:
    host = open_host(*vms)
    for vm in vms:
        found = host.knobs(vm.instance, Family.DISK)
        key = KnobKey(vm.process.uuid, Knob.BFQ_WEIGHT)
        assert found[key] == 100
        assert {key.knob for key in found} <= {*DISK_WEIGHTS.values(), Knob.DISK_CEILING}
        for wanted in (1, 1000, 100):
            assert host.write(vm.instance, key, wanted) == wanted
        for refused in (0, 1001):
            with pytest.raises(HostError):
                host.write(vm.instance, key, refused)
        if KnobKey(vm.process.uuid, Knob.IO_WEIGHT) in found:
            assert host.write(vm.instance, KnobKey(vm.process.uuid, Knob.IO_WEIGHT), 5000) == 5000
            assert host.write(vm.instance, KnobKey(vm.process.uuid, Knob.IO_WEIGHT), 100) == 100
    assert host.resources.host(()).weighings == {"nullb0": Weighing.BFQ}
    host.forget(frozenset())


def test_a_ceiling_holds_back_who_reads_as_much_as_it_can_with_any_scheduler(vms: tuple[Vm, Vm]) -> None:
    SCHEDULER.write_text("none")
    host = open_host(*vms)
    shop, hog = vms
    key = KnobKey(hog.process.uuid, Knob.DISK_CEILING, DISK.stat().st_rdev)
    assert host.knobs(hog.instance, Family.DISK)[key] == UNLIMITED
    assert host.write(hog.instance, key, 20) == 20
    assert (hog.scope / "io.max").read_text().split()[1:] == ["rbps=max", "wbps=max", "riops=20", "wiops=20"]
    time.sleep(0.5)
    held = shares(shop, hog)
    assert host.write(hog.instance, key, UNLIMITED) == UNLIMITED
    assert (hog.scope / "io.max").read_text() == ""
    time.sleep(0.5)
    free = shares(shop, hog)
    print(f"with a ceiling of 20 requests/s for the other: {held}, without: {free} requests/s")
    assert held[1] < 30
    assert free[1] > 2 * held[1]
    host.forget(frozenset())
