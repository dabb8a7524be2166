"""EEVDF's slices on this kernel: of real threads, set, read back and undone, with all else of them left as it is."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.hypervisor import Domains
from manager.host.kernel_host import KernelHost
from manager.host.thread_scheduling import DEFAULT, attributes, default_slice_ns, set_slice, slice_of
from manager.loop.journal import Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop, TickResult
from manager.model.host import Discovery
from manager.model.knobs import Knob, KnobKey
from manager.model.limits import EVERYTHING
from manager.model.records import OutcomeKind
from manager.model.registration import Application, Assignment, HostSpec, Mode, Sla, Tier, VmClass, VmSpec
from manager.model.warp import Mechanism, WarpUse
from policies.equal import POLICY as EQUAL
from tests.host.conftest import REAL, QemuLike

DEFAULT_NS = default_slice_ns()
AUTO_10_MS_NS = 100_000
pytestmark = pytest.mark.skipif(DEFAULT_NS is None, reason="NOT TESTED: this kernel does not honour slices (6.12 does)")


def read_slice_ns(pid: int) -> int | None:
    """``se.slice`` of /proc/PID/sched, None where this kernel has none."""
    match = re.search(r"^(?:se\.)?slice\s*:\s*(\d+)", Path(f"/proc/{pid}/sched").read_text(), re.MULTILINE)
    return int(match[1]) if match else None


def slices(vm: QemuLike) -> dict[str, int | None]:
    """Of every thread, as the kernel's own file shows them."""
    return {task.name: read_slice_ns(int(task.name)) for task in Path(f"/proc/{vm.pid}/task").iterdir()}


def test_it_is_set_read_back_and_given_back_to_the_kernel(qemu: QemuLike) -> None:
    tid = qemu.tids["CPU 0/TCG"]
    assert slice_of(tid, {DEFAULT_NS}) == DEFAULT
    os.setpriority(os.PRIO_PROCESS, tid, 5)
    for wanted_ns in (100_000, 250_000, 100_000_000, DEFAULT):
        set_slice(tid, wanted_ns)
        assert slice_of(tid, {DEFAULT_NS}) == wanted_ns
        assert read_slice_ns(tid) == (wanted_ns or DEFAULT_NS)
    assert os.getpriority(os.PRIO_PROCESS, tid) == 5
    assert attributes(tid).policy == os.SCHED_OTHER


def test_of_a_thread_that_is_not_in_sched_other_there_is_no_slice(qemu: QemuLike) -> None:
    tid = qemu.tids["CPU 0/TCG"]
    os.sched_setscheduler(tid, os.SCHED_BATCH, os.sched_param(0))
    assert slice_of(tid, {DEFAULT_NS}) is None
    with pytest.raises(HostError, match="not in SCHED_OTHER") as refused:
        set_slice(tid, 100_000)
    assert refused.value.errno == errno.EINVAL
    assert os.sched_getscheduler(tid) == os.SCHED_BATCH


def test_a_thread_that_ended(qemu: QemuLike) -> None:
    tid = qemu.tids["CPU 0/TCG"]
    qemu.tell("end CPU 0/TCG")
    with pytest.raises(VmVanished):
        slice_of(tid, ())
    with pytest.raises(VmVanished):
        set_slice(tid, 100_000)


@dataclass
class Watch:
    """Stands for the background thread that lists domains."""

    domains: Domains
    discovery: Discovery = field(default_factory=lambda: Discovery(0.0, 60.0))


@dataclass
class Agent:
    """The loop of an agent on this host, with one VM."""

    vm: QemuLike
    path: Path

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        domains = Domains({self.vm.uuid: self.vm.instance}, 1, True)
        self.host = KernelHost(REAL, Watch(domains))  # type: ignore[arg-type]
        self.journal = Journal(self.path, self.host.boot_id)
        settings = LoopSettings("test", 1.0, 30.0, 20)
        self.loop = ControlLoop(self.host, self.journal, {"equal": EQUAL}, settings, limits=EVERYTHING)

    def end(self) -> None:
        self.journal.close()
        self.host.forget(frozenset())

    def crash(self) -> None:
        self.end()
        self.start()

    def tick(self, **host: object) -> TickResult:
        spec = replace(HostSpec("test", policy="equal", pinning=False, warp=WarpUse.SLICE), **host)  # type: ignore[arg-type]
        shop = Application("shop", (Tier("web", ("web",)),), Sla(10.0))
        vms = (VmSpec("web", VmClass.CRITICAL, libvirt_uuid=self.vm.uuid),)
        return self.loop.tick(Assignment(spec, vms, (shop,)), {})


@pytest.fixture
def agent(qemu: QemuLike, tmp_path: Path) -> Iterator[Agent]:
    made = Agent(qemu, tmp_path / "journal.db")
    if made.host.capabilities.scheduler or any(
        offer.available
        for offer in made.host.capabilities.warps
        if offer.mechanism in {Mechanism.BVT, Mechanism.GROUP_IDENTITY}
    ):
        pytest.skip("NOT TESTED: this kernel has a better mechanism")
    yield made
    made.end()


def warps_of(result: TickResult, vm: QemuLike) -> list[tuple[int, str, OutcomeKind]]:
    found = [one for one in result.outcomes if one.key.knob is Knob.SLICE]
    assert {one.key.uuid for one in found} <= {vm.uuid}
    return [(one.key.index, str(one.after), one.kind) for one in found]


def test_a_warp_is_a_slice_of_each_vcpu_and_of_no_other_thread(agent: Agent) -> None:
    vm, before = agent.vm, slices(agent.vm)
    result = agent.tick()
    applied = OutcomeKind.APPLIED
    assert warps_of(result, vm) == [(0, str(AUTO_10_MS_NS), applied), (1, str(AUTO_10_MS_NS), applied)]
    [reason, *_] = [one.reason for one in result.records if one.knob is Knob.SLICE]
    assert reason == "warp auto: SLA 10 ms -> 29,651 us by EEVDF slice 0.1 ms"
    vcpus = {str(vm.tids[name]) for name in ("CPU 0/TCG", "CPU 1/TCG")}
    assert slices(vm) == before | dict.fromkeys(vcpus, AUTO_10_MS_NS)
    assert not agent.tick().outcomes, "and then it stays"
    undone = agent.loop.release("test")
    assert {kind for _, _, kind in warps_of(undone, vm)} == {OutcomeKind.RESTORED}
    assert slices(vm) == before
    assert not agent.journal.entries


@pytest.mark.parametrize("undo", ["release", "observe", "off"])
def test_it_is_undone_also_by_an_agent_that_only_has_the_journal(agent: Agent, undo: str) -> None:
    tid = agent.vm.tids["CPU 1/TCG"]
    set_slice(tid, 7_000_000)  # an operator's
    before = slices(agent.vm)
    agent.tick()
    assert slices(agent.vm) != before
    agent.crash()
    if undo == "release":
        agent.loop.release("test")
    else:
        agent.tick(**({"mode": Mode.OBSERVE} if undo == "observe" else {"warp": WarpUse.OFF}))
    assert slices(agent.vm) == before
    assert not agent.journal.entries


def test_a_slice_of_somebody_else_is_left_alone(agent: Agent) -> None:
    agent.tick()
    tid = agent.vm.tids["CPU 0/TCG"]
    set_slice(tid, 7_000_000)
    [given_up] = [one for one in agent.tick().outcomes if one.kind is OutcomeKind.EXTERNAL]
    assert given_up.key == KnobKey(agent.vm.uuid, Knob.SLICE, 0)
    agent.tick()
    agent.loop.release("test")
    assert read_slice_ns(tid) == 7_000_000


def test_a_vcpu_that_is_plugged_gets_it_and_one_that_goes_is_forgotten(agent: Agent) -> None:
    agent.tick()
    tid = agent.vm.tell("start CPU 2/TCG")
    for _ in range(3):  # its thread is found a reading after its number has changed
        agent.tick()
    assert read_slice_ns(tid) == AUTO_10_MS_NS
    agent.vm.tell("end CPU 2/TCG")
    for _ in range(3):
        agent.tick()
    assert KnobKey(agent.vm.uuid, Knob.SLICE, 2) not in agent.journal.entries


def test_a_thread_that_an_operator_made_real_time_keeps_nothing_from_working(agent: Agent) -> None:
    tid = agent.vm.tids["CPU 0/TCG"]
    os.sched_setscheduler(tid, os.SCHED_BATCH, os.sched_param(0))
    assert [index for index, _, _ in warps_of(agent.tick(), agent.vm)] == [1]
    agent.loop.release("test")
    assert os.sched_getscheduler(tid) == os.SCHED_BATCH


def test_nobody_is_asked_for_a_slice_without_a_warp(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    real: Callable[..., object] = agent.host.knobs
    monkeypatch.setattr(agent.host, "knobs", lambda *what: asked.append(what) or real(*what))
    agent.tick(warp=WarpUse.OFF)
    assert not asked
    agent.tick()
    assert len(asked) == 1
