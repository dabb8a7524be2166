"""Weights of VMs on disks: files of v2 in a tree, the real ones of BFQ on v1 where this kernel has them; and the disks
on which they act.
"""

from __future__ import annotations

import errno
import gc
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.cgroup import CgroupMounts, read_mounts
from manager.host.disk_weights import DiskWeights, weighing_of
from manager.host.doctor import disk_check
from manager.host.doctor.check import Subject
from manager.host.knob_files import VmTarget
from manager.host.registry import HostPaths
from manager.model.finding import FindingStatus
from manager.model.knobs import Knob, KnobKey
from manager.model.resource_use import Weighing
from tests.host.conftest import REAL, descriptors

BFQ, COST = KnobKey("u-web", Knob.BFQ_WEIGHT), KnobKey("u-web", Knob.IO_WEIGHT)
QOS = "254:0 enable=1 ctrl=auto model=linear\n8:0 enable=0 ctrl=auto"


def target(folder: Path | None) -> VmTarget:
    return VmTarget("u-web", None, (), None, folder)


@pytest.fixture
def limits(tmp_path: Path) -> DiskWeights:
    return DiskWeights(CgroupMounts({"": (tmp_path, "/")}))


@pytest.mark.parametrize(
    ("text", "weight"), [("default 100\n", 100), ("100\n", 100), ("default 20\n8:0 500\n", 20), ("1000\n", 1000)]
)
def test_what_the_kernel_says(limits: DiskWeights, tmp_path: Path, text: str, weight: int) -> None:
    (tmp_path / "io.bfq.weight").write_text(text)
    assert limits.read(target(tmp_path)) == {BFQ: weight}
    (tmp_path / "io.weight").write_text("default 5000\n")
    assert limits.read(target(tmp_path)) == {BFQ: weight, COST: 5000}


@pytest.mark.parametrize("text", ["", "100", "default\n", "8:0 500\n", "-1\n"])
def test_what_no_kernel_says_is_an_error(limits: DiskWeights, tmp_path: Path, text: str) -> None:
    (tmp_path / "io.bfq.weight").write_text(text)
    with pytest.raises(HostError) as raised:
        limits.read(target(tmp_path))
    assert raised.value.errno == errno.EIO


def test_a_vm_without_weights_has_none_and_files_are_closed(limits: DiskWeights, tmp_path: Path) -> None:
    gc.collect()  # what tests before left open
    before = descriptors()
    for vm in (target(None), target(tmp_path)):
        assert limits.read(vm) == {}
        with pytest.raises(VmVanished):
            limits.write(BFQ, 100, vm)
        limits.forget("u-web")
    (tmp_path / "io.weight").write_text("default 100\n")
    assert limits.read(target(tmp_path)) == {COST: 100}
    for refused in (0, 10_001, frozenset({1})):
        with pytest.raises(HostError):
            limits.write(COST, refused, target(tmp_path))
    limits.forget("u-web")
    assert descriptors() == before
    assert limits.read(None) == {}


def host(folder: Path, **schedulers: str) -> HostPaths:
    for disk, text in schedulers.items():
        queue = folder / "sys/block" / disk / "queue"
        queue.mkdir(parents=True)
        (queue / "scheduler").write_text(text)
    return HostPaths(folder)


@pytest.mark.parametrize(
    ("scheduler", "number", "cost", "found"),
    [
        ("none mq-deadline [bfq]\n", "8:0", "", Weighing.BFQ),
        ("[none] mq-deadline bfq\n", "8:0", "", None),
        ("[none] mq-deadline bfq\n", "8:0", QOS, None),
        ("[none] mq-deadline bfq\n", "254:0", QOS, Weighing.COST),
        ("none [bfq]\n", "254:0", QOS, Weighing.BFQ),
    ],
)
def test_what_makes_weights_act(tmp_path: Path, scheduler: str, number: str, cost: str, found: Weighing | None) -> None:
    assert weighing_of(host(tmp_path, vda=scheduler), "vda", number, cost) is found
    assert weighing_of(host(tmp_path), "gone", "1:1", cost) is None


def test_the_doctor_names_the_disks(tmp_path: Path) -> None:
    paths = host(tmp_path, vda="none [bfq]\n", sda="[none] bfq\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("")
    line = "{} 0 {} 100 1 2000 30 50 2 1000 20 0 40 60 1 2 3 4 5 6\n"
    looked_at = Subject(paths, "", tmp_path / "lock", tmp_path, "journal.db")
    assert disk_check.weights(looked_at).status is FindingStatus.UNKNOWN
    (tmp_path / "proc/diskstats").write_text(line.format(8, "sda"))
    assert disk_check.weights(looked_at).status is FindingStatus.MISSING
    (tmp_path / "proc/diskstats").write_text(line.format(8, "sda") + line.format(254, "vda"))
    result = disk_check.weights(looked_at)
    assert (result.status, result.detail) == (FindingStatus.WORKS, "weights act on vda (bfq); not on sda")


def test_the_weight_of_bfq_on_v1(disk_group_of_v1: Path) -> None:
    weights, vm = DiskWeights(read_mounts(REAL)), target(disk_group_of_v1)
    if not (disk_group_of_v1 / "blkio.bfq.weight").exists():
        pytest.skip("NOT TESTED: this kernel has no BFQ")
    assert weights.read(vm) == {BFQ: 100}
    for wanted in (1, 1000, 100):
        assert weights.write(BFQ, wanted, vm) == wanted
    with pytest.raises(HostError):
        weights.write(BFQ, 1001, vm)
