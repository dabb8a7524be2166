"""Policies, nice values and limits of real-time CPU time on this kernel: of real threads in real groups, and undone."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.doctor.scratch import scratch_process
from manager.host.hypervisor import Domains
from manager.host.kernel_host import KernelHost
from manager.host.registry import RT_PERIOD_FILE, RT_RUNTIME_FILE
from manager.host.thread_scheduling import attributes, default_slice_ns, scheduling_of, set_scheduling, set_slice
from manager.loop.journal import Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop, TickResult
from manager.model.host import Discovery
from manager.model.knobs import HOST_UUID, SCHEDULINGS, Knob, KnobKey
from manager.model.limits import EVERYTHING
from manager.model.records import OutcomeKind
from manager.model.registration import Application, Assignment, HostSpec, Mode, Sla, Tier, VmClass, VmSpec
from manager.model.scheduling import Scheduling, SchedulingPolicy, in_words
from manager.model.warp import WarpUse
from policies.equal import POLICY as EQUAL
from tests.host.conftest import REAL, QemuLike, VmGroup, remove_groups, until

FIFO = Scheduling(SchedulingPolicy.FIFO, limit=0.3)
VCPUS = ("CPU 0/TCG", "CPU 1/TCG")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: real-time threads need root")


@dataclass
class Watch:
    """Stands for the background thread that lists domains."""

    domains: Domains
    discovery: Discovery = field(default_factory=lambda: Discovery(0.0, 60.0))


@dataclass
class Agent:
    """The loop of an agent on this host, with one VM in groups as libvirt's."""

    vm: QemuLike
    group: VmGroup
    path: Path
    adoptions: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.host = KernelHost(REAL, Watch(Domains({self.vm.uuid: self.vm.instance}, 1, True)))  # type: ignore[arg-type]
        self.journal = Journal(self.path, self.host.boot_id)
        self.loop = ControlLoop(
            self.host, self.journal, {"equal": EQUAL}, LoopSettings("test", 1.0, 30.0, 20), limits=EVERYTHING
        )

    def end(self) -> None:
        self.journal.close()
        self.host.forget(frozenset())

    def crash(self) -> None:
        self.end()
        self.start()

    def tick(self, scheduling: Scheduling | None = FIFO, **host: object) -> TickResult:
        spec = replace(HostSpec("test", policy="equal", pinning=False), **host)  # type: ignore[arg-type]
        vm = VmSpec("web", VmClass.CRITICAL, libvirt_uuid=self.vm.uuid, adoptions=self.adoptions, scheduling=scheduling)
        shop = Application("shop", (Tier("web", ("web",)),), Sla(10.0))
        return self.loop.tick(Assignment(spec, (vm,), (shop,)), {})

    @property
    def folders(self) -> dict[str, Path]:
        """The group above the VM's, its own, and those inside that."""
        own = self.group.folders[0]
        return {"above": own.parent, "vm": own, **{name: own / name for name in ("emulator", "vcpu0", "vcpu1")}}

    def limits(self) -> dict[str, int]:
        return {name: int((folder / RT_RUNTIME_FILE).read_text()) for name, folder in self.folders.items()}

    def threads(self) -> dict[str, str]:
        """Policy and level of each thread."""
        return {name: in_words(scheduling_of(tid) or 0) for name, tid in self.vm.tids.items()}


@pytest.fixture
def agent(start: Callable[..., QemuLike], group: VmGroup, tmp_path: Path) -> Iterator[Agent]:
    vm = start(*VCPUS, "worker", "IO iothread1")
    group.take(vm)
    for tid in vm.tids.values():
        os.setpriority(os.PRIO_PROCESS, tid, 0)  # whatever the tests themselves run with
    made = Agent(vm, group, tmp_path / "journal.db")
    yield made
    made.end()


@pytest.fixture
def limited(agent: Agent) -> Agent:
    if not agent.host.capabilities.limits_real_time:
        pytest.skip("NOT TESTED: this kernel has no limits for real-time threads of a group")
    above, own = (agent.folders[name] / RT_RUNTIME_FILE for name in ("above", "vm"))
    before, deadline = above.read_text(), time.monotonic() + 10
    while True:
        try:  # groups of the test before count until the kernel has freed them
            above.write_text("900000")
            own.write_text("900000")
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            continue
        finally:
            own.write_text("0")
            above.write_text(before)
        return agent


def kinds(result: TickResult) -> set[OutcomeKind]:
    return {one.kind for one in result.outcomes if one.key.knob in SCHEDULINGS}


@pytest.mark.parametrize("policy", [os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE])
def test_every_policy_of_a_thread_comes_back_with_its_nice_value(qemu: QemuLike, policy: int) -> None:
    tid = qemu.tids[VCPUS[0]]
    os.setpriority(os.PRIO_PROCESS, tid, 4)
    os.sched_setscheduler(tid, policy, os.sched_param(0))
    before, attributes_before = scheduling_of(tid), bytes(attributes(tid))
    assert before is not None
    for value in (-20, 19, 1007, 2001, 1001, 0):
        set_scheduling(tid, value)
        assert scheduling_of(tid) == value
    assert os.sched_getscheduler(tid) == os.SCHED_OTHER
    set_scheduling(tid, before)
    assert bytes(attributes(tid)) == attributes_before


def test_a_nice_value_leaves_the_slice_and_a_thread_that_ended_is_gone(qemu: QemuLike) -> None:
    tid = qemu.tids[VCPUS[0]]
    if default_slice_ns() is not None:
        set_slice(tid, 300_000)
    runtime = attributes(tid).runtime
    set_scheduling(tid, -5)
    assert attributes(tid).runtime == runtime
    qemu.tell(f"end {VCPUS[0]}")
    for call in (lambda: scheduling_of(tid), lambda: set_scheduling(tid, 0)):
        with pytest.raises(VmVanished):
            call()


def test_a_nice_value_is_set_for_vcpus_alone_and_undone_by_one_who_only_has_the_journal(agent: Agent) -> None:
    os.setpriority(os.PRIO_PROCESS, agent.vm.tids[VCPUS[1]], 3)
    before = agent.threads()
    agent.tick(Scheduling(SchedulingPolicy.OTHER, nice=-7))
    assert agent.threads() == before | dict.fromkeys(VCPUS, "nice -7")
    assert not kinds(agent.tick(Scheduling(SchedulingPolicy.OTHER, nice=-7)))
    agent.crash()
    agent.loop.release("test")
    assert agent.threads() == before
    assert not agent.journal.entries


@pytest.mark.parametrize("policy", [SchedulingPolicy.FIFO, SchedulingPolicy.RR])
@pytest.mark.parametrize("undo", ["release", "observe", "unregister"])
def test_real_time_vcpus_and_their_limits_are_set_and_undone(
    limited: Agent, policy: SchedulingPolicy, undo: str
) -> None:
    threads, limits = limited.threads(), limited.limits()
    wanted = Scheduling(policy, 5, limit=0.3)
    assert kinds(limited.tick(wanted)) == {OutcomeKind.APPLIED}
    assert limited.threads() == threads | dict.fromkeys(VCPUS, f"{policy} 5")
    assert limited.limits() == {"above": 300_000, "vm": 300_000, "emulator": 0, "vcpu0": 150_000, "vcpu1": 150_000}
    assert not kinds(limited.tick(wanted)), "and then it stays"
    limited.crash()
    if undo == "release":
        result = limited.loop.release("test")
    elif undo == "observe":
        result = limited.tick(wanted, mode=Mode.OBSERVE)
    else:
        result = limited.tick(None)
    assert kinds(result) <= {OutcomeKind.RESTORED, OutcomeKind.OBSERVED}
    assert (limited.threads(), limited.limits()) == (threads, limits)
    assert not [key for key in limited.journal.entries if key.knob in SCHEDULINGS]


def test_a_busy_real_time_vcpu_gets_no_more_than_its_limit(limited: Agent) -> None:
    """Beside another on its pCPU, which without a limit would get next to nothing."""
    cpu = min(os.sched_getaffinity(0))
    tids = [limited.vm.tids[name] for name in VCPUS]
    for tid in tids:
        os.sched_setaffinity(tid, {cpu})
    limited.tick()
    limited.vm.tell("spin")
    with scratch_process() as hog:
        os.sched_setaffinity(hog.pid, {cpu})
        hog.spin()
        used = [_run_ns(tid) for tid in tids]
        before_ns, before_s = hog.cpu_ns(), time.monotonic()
        time.sleep(3)
        vcpus_ns = sum(_run_ns(tid) for tid in tids) - sum(used)
        hog_ns, elapsed_s = hog.cpu_ns() - before_ns, time.monotonic() - before_s
    assert vcpus_ns > 0
    assert vcpus_ns / 1e9 / elapsed_s < 0.45, "0.3 of each second that the time touches"
    assert hog_ns > vcpus_ns / 20, "others may be busy there, too"


def _run_ns(tid: int) -> int:
    return int(Path(f"/proc/{tid}/schedstat").read_text().split()[0])


def test_a_limit_that_gets_smaller_or_larger_stays_within_what_is_around_it(limited: Agent) -> None:
    for limit_us in (800_000, 100_000, 900_000):
        result = limited.tick(replace(FIFO, limit=limit_us / 10**6))
        assert kinds(result) == {OutcomeKind.APPLIED}
        assert limited.limits()["above"] == limit_us
        assert limited.limits()["vcpu1"] == limit_us // 2


def test_a_thread_that_nothing_would_stop_is_not_made_real_time(limited: Agent) -> None:
    key = KnobKey(limited.vm.uuid, Knob.SCHEDULING, 0)
    tid = limited.vm.tids[VCPUS[0]]

    def refused() -> int | None:
        with pytest.raises(HostError, match="in no group that limits it") as error:
            limited.host.write(limited.vm.instance, key, 1001)
        assert scheduling_of(tid) == 0
        return error.value.errno

    assert refused() == errno.EPERM
    limited.tick()
    set_scheduling(tid, 0)
    (limited.group.homes[0] / "tasks").write_text(str(tid))  # the root of the hierarchy has 95 %
    assert refused() == errno.EPERM


def test_another_period_than_the_kernels_own_is_left_alone(limited: Agent) -> None:
    (limited.folders["vcpu0"] / RT_PERIOD_FILE).write_text("500000")
    result = limited.tick()
    failed = {one.key.knob: one.detail for one in result.outcomes if one.kind is OutcomeKind.FAILED}
    assert "is 500000, not 1000000" in failed[Knob.VCPU_RT_RUNTIME]
    assert limited.threads()[VCPUS[0]] == "nice 0"
    assert limited.threads()[VCPUS[1]] == "fifo 1"


def test_what_somebody_else_did_to_a_thread_stays_until_it_is_adopted(limited: Agent) -> None:
    limited.tick()
    tid = limited.vm.tids[VCPUS[0]]
    set_scheduling(tid, 2004)
    assert OutcomeKind.EXTERNAL in kinds(limited.tick())
    assert not kinds(limited.tick())
    assert limited.threads()[VCPUS[0]] == "rr 4"
    limited.adoptions = 1
    for _ in range(2):
        limited.tick()
    assert limited.threads()[VCPUS[0]] == "fifo 1"


def test_the_group_above_is_put_back_when_the_vm_ended(limited: Agent) -> None:
    above, own = limited.folders["above"], limited.group.folders[0]
    limited.tick()
    limited.crash()
    key = KnobKey(HOST_UUID, Knob.RT_RUNTIME, above.stat().st_ino & 2**31 - 1)
    assert key in limited.journal.entries
    limited.vm.kill()
    remove_groups(own)

    def put_back() -> bool:
        limited.tick()
        return not limited.journal.entries

    until(put_back, "the kernel has let go of the VM's group")
    assert int((above / RT_RUNTIME_FILE).read_text()) == 0


def test_warps_leave_real_time_vcpus_alone_without_an_alarm(limited: Agent) -> None:
    if default_slice_ns() is None:
        pytest.skip("NOT TESTED: this kernel does not honour slices (6.12 does)")
    limited.tick(None, warp=WarpUse.SLICE)
    result = limited.tick(FIFO, warp=WarpUse.SLICE)
    assert not result.problems
    assert {one.kind for one in result.outcomes} <= {OutcomeKind.APPLIED, OutcomeKind.RESTORED}
    again = limited.tick(FIFO, warp=WarpUse.SLICE)
    assert not again.outcomes
    limited.loop.release("test")
    assert not limited.journal.entries
    assert set(limited.threads().values()) == {"nice 0"}


def test_an_operators_real_time_thread_is_no_matter_for_warps(agent: Agent) -> None:
    """One in the root group, where the kernel's own limit holds."""
    if default_slice_ns() is None:
        pytest.skip("NOT TESTED: this kernel does not honour slices (6.12 does)")
    agent.group.empty()
    tid = agent.vm.tids[VCPUS[0]]
    agent.tick(None, warp=WarpUse.SLICE)
    os.sched_setscheduler(tid, os.SCHED_FIFO, os.sched_param(2))
    for _ in range(3):
        result = agent.tick(None, warp=WarpUse.SLICE)
        assert not [one for one in result.outcomes if one.kind in {OutcomeKind.EXTERNAL, OutcomeKind.FAILED}]
        assert not result.problems
    agent.loop.release("test")
    assert scheduling_of(tid) == 1002
