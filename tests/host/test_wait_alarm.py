"""The kernel's timer samples the waits of real threads on this kernel, and rings."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from manager.bpf import tap
from manager.errors import HostError
from manager.host import wait_timer
from manager.host.kernel_host import KernelHost
from manager.host.taps import TapProgram, of_this_machine
from manager.host.thread_times import ThreadTimes
from manager.host.wait_alarm import WaitAlarm
from manager.model.host import LastWaits, WaitWatch
from manager.model.traffic import AnswerCount, Answered, JudgedService
from tests.host.conftest import REAL, QemuLike, VmGroup, until
from tests.host.wire import NEEDS_BPF

pytestmark = NEEDS_BPF

INTERVAL_S = 0.01
LONG_S = 30.0
NEVER = 1000.0
"""A bound that no wait exceeds: on a busy machine one of a second may end within a sample."""
NOTHING = Answered()
LOOPBACK, PORT = 1, 80


@pytest.fixture(scope="module")
def times() -> Iterator[ThreadTimes]:
    with closing(ThreadTimes(REAL)) as loaded:
        yield loaded


class Watched:
    """A VM whose waits are watched."""

    def __init__(self, vm: QemuLike, times: ThreadTimes) -> None:
        self.vm, self.times = vm, times
        self.host = KernelHost(REAL, None, times=times)
        assert self.host.wait_alarm is not None
        self.alarm: WaitAlarm = self.host.wait_alarm
        self.read()

    def read(self) -> None:
        self.host.look()
        self.host.read(self.vm.instance, afresh=False)

    def arm(self, bound: float, answered: Answered = NOTHING) -> bool:
        now_s, instances = time.monotonic(), (self.vm.instance,)
        waits = tuple(self.host.waits(instances))
        return self.alarm.arm(WaitWatch(instances, waits, now_s, (bound,), INTERVAL_S, answered, now_s), now_s)

    def last(self) -> LastWaits:
        """After a sample was taken at least."""
        samples = self.times.timer.samples
        until(lambda: self.times.timer.samples > samples, "the kernel took a sample")
        last = self.alarm.disarm()
        assert last is not None
        return last


@pytest.fixture
def watched(qemu: QemuLike, group: VmGroup, times: ThreadTimes) -> Iterator[Watched]:
    group.take(qemu)
    made = Watched(qemu, times)
    yield made
    made.alarm.disarm()
    made.host.forget(frozenset())


def test_a_vm_at_rest_is_sampled_and_nothing_rings(watched: Watched) -> None:
    [before] = watched.host.waits([watched.vm.instance])
    assert watched.arm(NEVER)
    last = watched.last()
    assert last.instances == (watched.vm.instance,)
    [after] = watched.host.waits([watched.vm.instance])
    for first, earlier, later, end in zip(before, *last.before, *last.now, after, strict=True):
        assert first <= earlier <= later <= end
    assert last.from_s < last.at_s <= time.monotonic()
    assert watched.alarm.wait(0.0) is False
    assert watched.alarm.disarm() is None


def test_it_rings_once_for_a_vcpu_that_waits_and_goes_on_when_it_is_armed_again(watched: Watched) -> None:
    """Its vCPUs share a pCPU."""
    cpu = min(os.sched_getaffinity(0))
    for tid in watched.vm.tids.values():
        os.sched_setaffinity(tid, {cpu})
    watched.read()
    watched.vm.tell("spin")
    for _ in range(2):
        assert watched.arm(0.05)
        assert watched.alarm.wait(LONG_S) is True
        samples = watched.times.timer.samples
        time.sleep(3 * INTERVAL_S)
        assert watched.times.timer.samples == samples
        last = watched.alarm.disarm()
        assert last is not None
        waits = [now - before for now, before in zip(last.now[0], last.before[0], strict=True)]
        assert max(waits) > 0.05 * (last.at_s - last.from_s) * 1e9
        assert watched.alarm.wait(0.0) is False, "what rang before is over"
    watched.vm.tell("rest")


def test_it_rings_for_a_vm_that_is_gone(watched: Watched) -> None:
    assert watched.arm(0.5)
    watched.vm.kill()
    assert watched.alarm.wait(LONG_S) is True
    last = watched.alarm.disarm()
    assert last is not None
    assert last.now == ((),)


def test_what_was_sampled_while_threads_came_counts_for_nothing(watched: Watched) -> None:
    assert watched.arm(0.5)
    assert watched.alarm.is_true
    watched.vm.tell("start CPU 2/TCG")
    for _ in range(3):
        watched.read()
    assert not watched.alarm.is_true
    assert watched.alarm.disarm() is None
    assert watched.arm(NEVER)
    assert [len(of_vm) for of_vm in watched.last().now] == [3]


def test_wake_ends_one_wait(watched: Watched) -> None:
    assert watched.arm(NEVER)
    watched.alarm.wake()
    assert watched.alarm.wait(LONG_S) is False
    assert watched.alarm.wait(0.0) is False


def test_a_vm_that_is_read_from_files_is_not_sampled(watched: Watched) -> None:
    stranger = watched.vm.instance._replace(uuid="another")
    now_s = time.monotonic()
    for instance, waits in ((stranger, (1, 2)), (watched.vm.instance, ())):
        wanted = WaitWatch((instance,), (waits,), now_s, (0.5,), INTERVAL_S, NOTHING, now_s)
        assert not watched.alarm.arm(wanted, now_s)
    assert watched.alarm.disarm() is None


def test_a_kernel_that_refuses_is_not_asked_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def refuse(program: int, _told: bytes) -> bytes:
        asked.append(program)
        raise HostError("run of a program: Operation not permitted")

    monkeypatch.setattr(wait_timer, "run_program", refuse)
    assert not watched.arm(0.5)
    assert not watched.arm(0.5)
    assert len(asked) == 1
    assert "the guard samples by itself from now on" in caplog.text


class Service:
    """A service whose counters are written by the test, in the map of the program on taps."""

    def __init__(self, program: TapProgram) -> None:
        self._program = program
        self.table = program.answers([(LOOPBACK, PORT)])
        self.answered()

    def answered(self, asked: int = 0, answers: int = 0, late: int = 0) -> Answered:
        counters = dict.fromkeys(tap.COUNTERS, 0) | {"http": asked, "answers": answers, "late": late}
        value = struct.pack(f"={len(counters)}Q", *counters.values())
        self._program._services.write(tap.KEY.pack(LOOPBACK, PORT, 0), value)
        services = (JudgedService("shop", (LOOPBACK, PORT), 0.05, 0.1),)
        return Answered(services, self.table.read(), self.table)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with closing(of_this_machine()) as program:
        program.admit(LOOPBACK)
        yield Service(program)


@pytest.mark.parametrize(
    ("later", "rings"),
    [((10, 10, 0), False), ((20, 20, 0), False), ((20, 20, 1), True), ((11, 10, 0), True), ((12, 11, 0), False)],
)
def test_it_rings_for_a_late_answer_and_for_one_that_is_missing(
    watched: Watched, service: Service, later: tuple[int, int, int], rings: bool
) -> None:
    before = service.answered(10, 10, 0)
    assert watched.arm(NEVER, before)
    assert watched.alarm.judges
    service.answered(*later)
    if rings:
        assert watched.alarm.wait(LONG_S) is True
    else:
        samples = watched.times.timer.samples
        until(lambda: watched.times.timer.samples >= samples + 3, "the kernel looked at the answers")
        assert watched.alarm.wait(0.0) is False
    last = watched.alarm.disarm()
    assert last is not None
    asked, answers, late = (10, 10, 0) if rings else later
    assert last.answers == (AnswerCount(asked, answers, answers, late),), "when all was in time"


def test_what_others_count_is_not_looked_at(watched: Watched, service: Service) -> None:
    before = service.answered(10, 10, 0)
    assert watched.arm(NEVER, Answered(before.services, before.counts))
    assert not watched.alarm.judges
    assert watched.last().answers == ()


def test_another_table_takes_the_place_of_the_first(watched: Watched, service: Service) -> None:
    assert watched.arm(NEVER, service.answered(10, 10, 0))
    watched.alarm.disarm()
    with closing(of_this_machine()) as program:
        program.admit(LOOPBACK)
        other = Service(program)
        assert watched.arm(NEVER, other.answered(5, 5, 0))
        other.answered(5, 5, 1)
        assert watched.alarm.wait(LONG_S) is True
        watched.alarm.disarm()
