"""Times of threads by the BPF program are those of the files, of real threads on this kernel."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manager.bpf import threads
from manager.errors import HostError, VmVanished
from manager.host import thread_times
from manager.host.cgroup import MOST_UNREAD
from manager.host.kernel_host import KernelHost
from manager.host.thread_times import ThreadTimes, VmTimes
from manager.host.write_watch import WriteWatch
from manager.model.host import VmState
from manager.model.knobs import Knob, KnobKey
from tests.host.conftest import REAL, QemuLike, VmGroup, until
from tests.host.wire import NEEDS_BPF

pytestmark = NEEDS_BPF

ONLINE = sorted(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def times() -> Iterator[ThreadTimes]:
    with closing(ThreadTimes(REAL)) as loaded:
        yield loaded


class Hosts:
    """The same VM by the program and by files."""

    def __init__(self, vm: QemuLike, times: ThreadTimes) -> None:
        self.vm = vm
        self.instance = vm.instance
        self.all = {vm.uuid: vm.instance}
        self.by_program = KernelHost(REAL, None, times=times)
        self.by_files = KernelHost(REAL, None)

    def read(self, host: KernelHost) -> VmState:
        """As a tick does: counters alone where nothing else changed."""
        host.look()
        known = host.counters(self.all)
        if self.vm.uuid not in known:
            return host.read(self.instance, afresh=False)
        state, (cpu_ns, run_ns, delay_ns) = known[self.vm.uuid]
        counted = zip(state.vcpus, run_ns, delay_ns, strict=True)
        vcpus = tuple(vcpu._replace(run_ns=ran, run_delay_ns=waited) for vcpu, ran, waited in counted)
        return state._replace(cpu_ns=cpu_ns, vcpus=vcpus)

    @property
    def program_reads(self) -> bool:
        """Whether the program is what threads were read by at last."""
        held = self.by_program._handles[self.instance][0]._times
        return held is not None and held.unchanged


@pytest.fixture
def hosts(qemu: QemuLike, group: VmGroup, times: ThreadTimes) -> Iterator[Hosts]:
    group.take(qemu)
    found = Hosts(qemu, times)
    yield found
    for host in (found.by_program, found.by_files):
        host.forget(frozenset())


def schedstat(tid: int) -> tuple[int, int]:
    run_ns, delay_ns, _ = Path(f"/proc/{tid}/schedstat").read_text().split()
    return int(run_ns), int(delay_ns)


def test_threads_that_run_have_times_between_two_readings_of_their_files(qemu: QemuLike, times: ThreadTimes) -> None:
    tids = list(qemu.tids.values())
    held = times.hold(tids)
    qemu.tell("spin")
    before = [schedstat(tid) for tid in tids]
    for _ in range(20):
        times.look()
        after = [schedstat(tid) for tid in tids]
        for place, early, late in zip(held, before, after, strict=True):
            assert early[0] <= times.run_ns[place] <= late[0]
            assert early[1] <= times.delay_ns[place] <= late[1]
        before = after
    qemu.tell("rest")
    times.release(held)
    assert any(run_ns > 0 for run_ns, _ in before)


def test_a_vm_at_rest_is_the_same_by_both(hosts: Hosts) -> None:
    hosts.vm.tell("spin")
    hosts.read(hosts.by_program)
    hosts.vm.tell("rest")
    os.kill(hosts.vm.pid, signal.SIGSTOP)
    until(lambda: is_stopped(hosts.vm.pid), "the threads stopped")
    hosts.read(hosts.by_files)
    first = hosts.read(hosts.by_program)
    assert first._replace(known=None) == hosts.read(hosts.by_files)._replace(known=None)
    assert first == hosts.read(hosts.by_program)
    assert hosts.program_reads
    assert all(vcpu.run_ns for vcpu in first.vcpus)
    instances = [hosts.instance]
    stranger = hosts.instance._replace(uuid="another")
    for asked in (instances, [*instances, stranger], [stranger, *instances], [], [stranger]):
        assert hosts.by_program.waits(asked) == hosts.by_files.waits(asked)
    assert hosts.by_program.waits(instances) != [()]
    os.kill(hosts.vm.pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    return all(
        (task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in Path(f"/proc/{pid}/task").iterdir()
    )


def test_then_no_file_of_a_thread_is_read(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        hosts.read(hosts.by_program)
    handle = hosts.by_program._handles[hosts.instance][0]
    asked: set[int] = set()
    for name in ("fstat", "pread", "sched_getaffinity"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda which, *more, call=call: (asked.add(which), call(which, *more))[1])
    hosts.read(hosts.by_program)
    assert asked
    assert not asked & {handle._task_fd, *handle._schedstat_fds.values(), *hosts.vm.tids.values(), hosts.vm.pid}


def test_counters_are_read_alone_until_anything_hints_at_a_change(hosts: Hosts, group: VmGroup) -> None:
    def alone() -> bool:
        hosts.by_program.look()
        return bool(hosts.by_program.counters(hosts.all))

    def settle() -> None:
        group.weight.write_text("200")  # from the first report on, nothing is read that nobody wrote
        assert any(alone() or not hosts.read(hosts.by_program) for _ in range(5))

    assert not alone(), "nothing of it was ever read"
    hosts.read(hosts.by_program)
    settle()
    assert hosts.by_files.counters(hosts.all) == {}
    assert hosts.by_program.counters({"another": hosts.instance._replace(uuid="another")}) == {}
    assert alone()
    group.weight.write_text("300")
    assert not alone()
    settle()
    hosts.by_program.write(hosts.instance, KnobKey(hosts.vm.uuid, Knob.VCPU_PIN, 1), frozenset({ONLINE[0]}))
    assert not alone()
    settle()
    hosts.by_program.read(hosts.instance, afresh=True)
    assert not alone(), "it may have found another state"
    settle()
    assert [alone() for _ in range(MOST_UNREAD)].count(False) > 0, "now and then all is read"
    hosts.read(hosts.by_program)
    settle()
    hosts.vm.kill()
    assert not alone()


@pytest.mark.parametrize("name", ["CPU 1/TCG", "IO iothread1", None])
def test_an_affinity_that_another_tool_sets_is_seen_at_once(hosts: Hosts, name: str | None) -> None:
    if len(ONLINE) < 2:
        pytest.skip("NOT TESTED: one pCPU")
    tid = hosts.vm.tids[name] if name else hosts.vm.pid
    hosts.read(hosts.by_program)
    for cpus in ({ONLINE[0]}, {ONLINE[1]}, set(ONLINE)):
        hosts.read(hosts.by_program)
        os.sched_setaffinity(tid, cpus)
        seen = hosts.read(hosts.by_program)
        at_place = {"CPU 1/TCG": seen.vcpus[1].cpus, "IO iothread1": seen.iothread_cpus[0][1]}
        assert at_place.get(name or "", seen.emulator_cpus) == cpus
        assert seen.knobs() == hosts.by_program.read(hosts.instance).knobs()


def test_a_weight_that_another_tool_sets_is_seen_at_once(hosts: Hosts, group: VmGroup) -> None:
    group.weight.write_text("200")  # from the first report on, nothing is read that nobody wrote
    for weight in (300, 400, 500):
        for _ in range(3):
            hosts.read(hosts.by_program)
        group.weight.write_text(f"{weight}")
        assert hosts.read(hosts.by_program).weight == weight
        assert hosts.read(hosts.by_program).weight == weight


def test_one_that_is_not_reported_is_seen_after_some_readings(
    hosts: Hosts, group: VmGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.read(hosts.by_program)
    group.weight.write_text("200")
    for _ in range(3):
        hosts.read(hosts.by_program)
    monkeypatch.setattr(WriteWatch, "look", lambda _: None)
    for weight in (300, 400):
        group.weight.write_text(f"{weight}")
        seen = [hosts.read(hosts.by_program).weight for _ in range(MOST_UNREAD)]
        assert seen[-1] == weight


def test_what_we_write_is_read_back_at_once(hosts: Hosts, group: VmGroup) -> None:
    for weight in (300, 400):
        for _ in range(3):
            hosts.read(hosts.by_program)
        hosts.by_program.write(hosts.instance, KnobKey(hosts.vm.uuid, Knob.WEIGHT), weight)
        hosts.by_program.write(hosts.instance, KnobKey(hosts.vm.uuid, Knob.VCPU_PIN, 1), frozenset({ONLINE[0]}))
        state = hosts.read(hosts.by_program)
        assert (state.weight, state.vcpus[1].cpus) == (weight, {ONLINE[0]})


def test_a_vcpu_comes_and_goes(hosts: Hosts) -> None:
    for _ in range(3):
        assert len(hosts.read(hosts.by_program).vcpus) == 2
    hosts.vm.tell("start CPU 2/TCG")
    assert [len(hosts.read(hosts.by_program).vcpus) for _ in range(3)] == [2, 3, 3]
    assert hosts.program_reads
    assert [len(waits) for waits in hosts.by_program.waits([hosts.instance])] == [3]
    hosts.vm.tell("end CPU 2/TCG")
    assert [len(hosts.read(hosts.by_program).vcpus) for _ in range(2)] == [2, 2]
    until(lambda: hosts.read(hosts.by_program) and hosts.program_reads, "the program reads it again")


def test_a_vm_that_ends(hosts: Hosts) -> None:
    for _ in range(2):
        hosts.read(hosts.by_program)
    assert hosts.by_program.waits([hosts.instance]) != [()]
    hosts.vm.kill()
    assert hosts.by_program.waits([hosts.instance]) == [()]
    hosts.by_program.look()
    with pytest.raises(VmVanished):
        hosts.by_program.read(hosts.instance, afresh=False)


def test_a_place_never_shows_who_had_it_before(start: Callable[..., QemuLike], times: ThreadTimes) -> None:
    one, two = start("CPU 0/TCG"), start("CPU 0/TCG")
    first, second = VmTimes(times), VmTimes(times)
    first.hold([one.tids["CPU 0/TCG"]], [one.pid])
    times.look()
    first.settle()
    assert first.unchanged
    assert times.waits(list(first.vcpu_places)) == [schedstat(one.tids["CPU 0/TCG"])[1]]
    first.close()
    second.hold([two.tids["CPU 0/TCG"]], [two.pid])
    second.settle()
    assert not second.unchanged and not first.unchanged and not first.vcpu_places
    times.look()
    assert not second.unchanged and not first.unchanged
    second.settle()
    assert second.unchanged
    [state] = second.states([0], [frozenset(ONLINE)]) or ()
    assert state.run_ns == times.run_ns[second._begin] <= schedstat(two.tids["CPU 0/TCG"])[0]
    second.close()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=20))
def test_places_are_of_one_vm_each(times: ThreadTimes, steps: list[tuple[int, bool]]) -> None:
    tid = threading.get_native_id()
    held: list[range] = []
    for count, is_let_go in steps:
        if is_let_go and held:
            times.release(held.pop(count % len(held)))
        else:
            held.append(times.hold([tid] * count))
        places = [place for each in held for place in each]
        assert len(places) == len(set(places))
        times.look()
        assert all(times.run_ns[place] for place in places)
    for each in held:
        times.release(each)


def test_with_more_threads_than_places_files_are_read(
    qemu: QemuLike, group: VmGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group.take(qemu)
    monkeypatch.setattr(threads, "MOST_THREADS", 3)
    with closing(ThreadTimes(REAL)) as few:
        hosts = Hosts(qemu, few)
        assert [len(hosts.read(hosts.by_program).vcpus) for _ in range(3)] == [2, 2, 2]
        assert not hosts.program_reads
        assert "beyond 3 threads" in caplog.text
        hosts.by_program.forget(frozenset())


def test_a_kernel_that_refuses_later_is_told_and_files_are_read(
    qemu: QemuLike, group: VmGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group.take(qemu)
    with closing(ThreadTimes(REAL)) as times:
        hosts = Hosts(qemu, times)
        for _ in range(2):
            hosts.read(hosts.by_program)
        assert hosts.program_reads

        def refuse(*_: object) -> bytes:
            raise HostError("run of a program: Operation not permitted")

        monkeypatch.setattr(thread_times, "run_program", refuse)
        os.kill(qemu.pid, signal.SIGSTOP)
        until(lambda: is_stopped(qemu.pid), "the threads stopped")
        first, second = hosts.read(hosts.by_program), hosts.read(hosts.by_files)
        assert first._replace(known=None) == second._replace(known=None)
        assert not hosts.program_reads
        assert hosts.by_program.waits([qemu.instance]) == hosts.by_files.waits([qemu.instance])
        assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
        os.kill(qemu.pid, signal.SIGCONT)
        hosts.by_program.forget(frozenset())


@pytest.mark.parametrize(
    ("bpftool", "says"),
    [
        ("/nonexistent/bpftool", "/nonexistent/bpftool: "),
        ("/bin/false", "the kernel did not take the program equipoise_threads"),
    ],
)
def test_a_program_that_cannot_be_loaded_is_an_error(bpftool: str, says: str) -> None:
    with pytest.raises(HostError, match=says):
        ThreadTimes(REAL, bpftool)


def test_what_differs_from_the_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_times, "_schedstat", lambda *_: (1, 1))
    with pytest.raises(HostError, match="where the file says"):
        ThreadTimes(REAL)


HOLDER = """
import sys, threading, time
from pathlib import Path
from manager.host.registry import HostPaths
from manager.host.thread_times import ThreadTimes
times = ThreadTimes(HostPaths(Path("/")))
times.choose(list(times.hold([threading.get_native_id()])))
times.timer.start(0, [0], [1.0], 10**6, 0)
print("loaded", flush=True)
time.sleep(60)
"""


def test_nothing_stays_of_a_process_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "loaded\n"
        programs = programs_of(holder.pid)
        assert len(programs) == 5
        holder.kill()
    until(lambda: not any(is_there(program) for program in programs), "the kernel unloaded the programs")
    assert not list(Path("/sys/fs/bpf").glob("equipoise_threads*"))


def programs_of(pid: int) -> set[str]:
    lines = [line for file in Path(f"/proc/{pid}/fdinfo").iterdir() for line in file.read_text().splitlines()]
    return {line.split()[1] for line in lines if line.startswith("prog_id:")}


def is_there(program: str) -> bool:
    return subprocess.run(["bpftool", "prog", "show", "id", program], capture_output=True, check=False).returncode == 0
