"""The program on threads in this guest's kernel: its verifier takes it, and it reads what the files say."""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

from manager.bpf import tap, threads
from manager.host.registry import HostPaths
from manager.host.taps import TapProgram
from manager.host.thread_times import ThreadTimes
from manager.host.wait_timer import WatchedAnswers

HOST = HostPaths(Path("/"))
ROUNDS = 20
LONG_S = 60.0
# Not at the real-time priority that tests have in some guests: one would never let the other run.
SPIN = "import os; os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))\nwhile True: pass"


def schedstat(tid: int) -> tuple[int, int]:
    run_ns, delay_ns, _ = Path(f"/proc/{tid}/schedstat").read_text().split()
    return int(run_ns), int(delay_ns)


def test_threads_that_run_and_wait() -> None:
    """More than there are CPUs."""
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(2)]
    try:
        with closing(ThreadTimes(HOST)) as times:
            tids = [os.getpid(), *(process.pid for process in spinning)]
            held = times.hold(tids)
            before = [schedstat(tid) for tid in tids]
            for _ in range(ROUNDS):
                time.sleep(0.05)
                times.look()
                waits = times.waits(held)
                after = [schedstat(tid) for tid in tids]
                for place, wait_ns, early, late in zip(held, waits, before, after, strict=True):
                    assert early[0] <= times.run_ns[place] <= late[0]
                    assert early[1] <= times.delay_ns[place] <= wait_ns <= late[1]
                before = after
            assert all(run_ns and delay_ns for run_ns, delay_ns in before)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert not list(Path("/sys/fs/bpf").glob("equipoise_threads*"))


def test_marks_tell_an_affinity_a_thread_more_and_the_end() -> None:
    ending = threading.Event()
    waiting = threading.Thread(target=ending.wait)
    waiting.start()
    with closing(ThreadTimes(HOST)) as times:
        main, other = times.hold([os.getpid(), waiting.native_id or 0])
        times.look()
        first, changes = list(times.marks), times.changes
        times.look()
        assert (times.marks, times.changes) == (first, changes)
        assert 0 not in (first[main], first[other])
        ending.set()
        waiting.join()
        while Path(f"/proc/self/task/{waiting.native_id}").exists():  # the kernel is done with it a moment later
            time.sleep(0.001)
        times.look()
        assert times.marks[other] == threads.ENDED
        assert times.waits([other]) == [threads.GONE]
        assert times.marks[main] not in (0, first[main])
        again = times.marks[main]
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(os.getpid(), {0})
        times.look()
        assert (times.marks[main] == again) is (allowed == {0})
        os.sched_setaffinity(os.getpid(), allowed)


def test_the_timer_samples_and_rings_for_one_that_waits() -> None:
    """More threads than CPUs; then one that is gone."""
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(2)]
    try:
        with closing(ThreadTimes(HOST)) as times:
            times.choose(list(times.hold([process.pid for process in spinning])))
            for bound in (0.0, 0.2):
                now_ns = time.monotonic_ns()
                times.timer.start(now_ns, times.waits(times.chosen), [bound] * 2, 20_000_000, now_ns)
                assert select.select([times.timer.descriptor], [], [], LONG_S)[0]
                sample = times.timer.stop()
                assert sample is not None
                waited_ns = [now - before for now, before in zip(sample.wait_ns, sample.before_ns, strict=True)]
                assert max(waited_ns) > bound * (sample.at_ns - sample.from_ns)
                assert not select.select([times.timer.descriptor], [], [], 0)[0]
            for process in spinning:
                process.kill()
                process.wait()
            now_ns = time.monotonic_ns()
            times.timer.start(now_ns, [0, 0], [1.0] * 2, 20_000_000, now_ns)
            assert select.select([times.timer.descriptor], [], [], LONG_S)[0]
            gone = times.timer.stop()
            assert gone is not None
            assert list(gone.wait_ns) == [threads.GONE] * 2
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def test_the_timer_rings_for_a_late_answer(program: TapProgram) -> None:
    """What was answered before is what the last look in time has seen."""
    key, in_time = tap.KEY.pack(1, 80, 0), dict.fromkeys(tap.COUNTERS, 0) | {"http": 9, "answers": 9}
    with closing(ThreadTimes(HOST)) as times:
        program.admit(1)
        program._services.write(key, struct.pack(f"={len(in_time)}Q", *in_time.values()))
        table = program.answers([(1, 80)])
        before, now_ns = table.read(), time.monotonic_ns()
        times.choose(list(times.hold([os.getpid()])))
        watched = WatchedAnswers(table, [key], before, now_ns)
        times.timer.start(now_ns, times.waits(times.chosen), [1000.0], 20_000_000, now_ns, watched)
        one_late = in_time | {"late": 1}
        program._services.write(key, struct.pack(f"={len(one_late)}Q", *one_late.values()))
        assert select.select([times.timer.descriptor], [], [], LONG_S)[0]
        sample = times.timer.stop()
        assert sample is not None
        assert list(sample.answers) == before
