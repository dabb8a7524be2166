"""Siblings of critical vCPUs on a host that has some: found, fenced, left idle while an SLA is violated, given back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from manager.host.topology_reader import discover
from manager.loop.journal import Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop
from manager.model.decision import Decision, Memory, Snapshot
from manager.model.histogram import Histogram
from manager.model.limits import EVERYTHING
from manager.model.records import OutcomeKind
from manager.model.registration import Application, Assignment, HostSpec, Mode, Sla, Tier, VmClass, VmSpec
from manager.model.rules import BatchPlacement, PlacementRules
from manager.model.window import SlaState, Window
from policies.auto_siblings import with_siblings
from policies.auto_steps import LadderStep, StepCandidate, StepInForce, StepKind, StepsMemory
from policies.equal import POLICY as EQUAL
from tests.host.conftest import REAL, QemuLike
from tests.kernel.inside.cgroup_v2.conftest import SLICE, VCPUS, Vm, lay_out_slices, open_host, scope_name

ALL = frozenset(range(4))
INTERVAL_S = 5.0
TARGET_MS = 100.0
SERVING = ("CPU 0/KVM",)
STEP = StepCandidate(LadderStep(StepKind.SIBLINGS, "shop", 1.0, "shop"), 0.5, 0.25, 0.0, "batch VMs keep them busy")


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Takes the step of `auto` without its trials, which last minutes, while the SLA is violated."""

    name: str = "at-once"
    summary: str = "Siblings are left idle at once."

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        violated = [each for each in snapshot.applications if each.sla_state is SlaState.VIOLATED]
        taken = tuple(StepInForce(STEP, snapshot.now_s, 0.5, snapshot.now_s) for _ in violated)
        return Decision(cpus=with_siblings(StepsMemory(taken), snapshot, ()))


@pytest.fixture(scope="module")
def vms() -> Iterator[tuple[Vm, Vm]]:
    """A critical VM of one vCPU and a batch VM of two."""
    lay_out_slices()
    web = Vm("web", SLICE / scope_name(1, "web"), QemuLike((*SERVING, "worker")), vcpus=SERVING)
    batch = Vm("batch", SLICE / scope_name(2, "batch"), QemuLike((*VCPUS, "worker")))
    yield web, batch
    for vm in (web, batch):
        vm.process.kill()


class Host:
    """The loop of an agent here."""

    def __init__(self, folder: Path, web: Vm, batch: Vm) -> None:
        self.web, self.batch = web, batch
        self._kernel = open_host(web, batch)
        self._journal = Journal(folder / "journal.db", self._kernel.boot_id)
        settings = LoopSettings("guest", INTERVAL_S, 30.0, 20)
        policies = {"equal": EQUAL, "at-once": AtOnce()}
        self._loop = ControlLoop(self._kernel, self._journal, policies, settings, limits=EVERYTHING)

    def tick(self, policy: str, response_time_ms: float = 50.0, batch: BatchPlacement = BatchPlacement.FLOAT) -> None:
        host = HostSpec("guest", mode=Mode.ENFORCE, policy=policy, placement=PlacementRules(batch=batch))
        specs = (VmSpec("web", VmClass.CRITICAL), VmSpec("batch", VmClass.BATCH))
        shop = Application("shop", (Tier("web", ("web",)),), Sla(TARGET_MS))
        times, now_s = Histogram.of([1000 * response_time_ms] * 50), time.time()
        windows = [Window("shop", now_s - INTERVAL_S, now_s, times, times.count)]
        result = self._loop.tick(Assignment(host, vms=specs, applications=(shop,)), {"shop": windows})
        assert not result.problems

    def release(self) -> None:
        released = self._loop.release("test")
        assert {record.outcome for record in released.records} == {OutcomeKind.RESTORED}
        assert not self._journal.entries

    def end(self) -> None:
        self._journal.close()
        self._kernel.forget(frozenset())

    @property
    def seat(self) -> int:
        """The pCPU that the critical vCPU is pinned to."""
        (cpu,) = os.sched_getaffinity(self.web.process.tids[SERVING[0]])
        return cpu

    @property
    def sibling(self) -> int:
        (cpu,) = discover(REAL).whole_cores(frozenset({self.seat})) - {self.seat}
        return cpu

    def batch_pcpus(self) -> set[int]:
        """Where the kernel lets any thread of the batch VM run."""
        tasks = Path(f"/proc/{self.batch.process.pid}/task").iterdir()
        return set[int]().union(*(os.sched_getaffinity(int(task.name)) for task in tasks))

    def settings(self) -> list[dict[str, str]]:
        return [vm.settings() for vm in (self.web, self.batch)]


@pytest.fixture
def host(vms: tuple[Vm, Vm], tmp_path: Path) -> Iterator[Host]:
    opened = Host(tmp_path, *vms)
    yield opened
    opened.end()


def test_cores_are_those_that_the_kernel_tells() -> None:
    topology = discover(REAL)
    assert {cpu.number: cpu.core for cpu in topology.cpus} == {0: 0, 1: 0, 2: 2, 3: 2}
    assert topology.whole_cores(frozenset({3})) == {2, 3}


def test_a_fence_covers_the_whole_core_and_is_taken_away(host: Host) -> None:
    before = host.settings()
    host.tick("equal", batch=BatchPlacement.FENCE)
    assert host.batch_pcpus() == ALL - {host.seat, host.sibling}
    host.tick("equal")
    assert host.batch_pcpus() == ALL
    host.release()
    assert host.settings() == before


def test_siblings_are_left_idle_while_an_sla_is_violated(host: Host) -> None:
    before = host.settings()
    host.tick("at-once")  # who is pinned where is known from the next tick on
    for response_time_ms, left_idle in ((50.0, False), (150.0, True), (160.0, True), (50.0, False)):
        host.tick("at-once", response_time_ms)
        assert host.batch_pcpus() == (ALL - {host.sibling} if left_idle else ALL)
    host.tick("at-once", 150.0)
    host.release()
    assert host.settings() == before
