"""Who is blamed for the time that a thread waits for a pCPU."""

from __future__ import annotations

import pytest

from tests.bench.waits import NOBODY, Interrupt, Switch, Waits, WakeUp, parse, waits_of

CRITICAL, BATCH, OTHER = 7, 8, 9
ROLES = {CRITICAL: "critical", BATCH: "batch", OTHER: "other"}


def role_of(tid: int, comm: str) -> str:
    return ROLES.get(tid, comm)


def waits(*events: Switch | WakeUp | Interrupt, long_ms: float = 0.1) -> Waits:
    return waits_of(events, [CRITICAL], role_of, long_ms)[CRITICAL]


def to(at_ms: float, following: int, left: int = 0, *, runnable: bool = False, cpu: int = 0) -> Switch:
    return Switch(at_ms / 1000, cpu, left, runnable, following, f"comm {following}")


def test_a_wait_is_from_the_wake_up_to_running_and_blamed_on_those_who_ran() -> None:
    found = waits(
        to(0.0, BATCH),
        WakeUp(0.001, 0, CRITICAL),
        to(3.0, OTHER, BATCH, runnable=True),
        to(3.5, CRITICAL, OTHER),
        to(4.0, BATCH, CRITICAL),
    )
    assert found.woken_ms == [pytest.approx(2.5)]
    assert found.blamed_ms == {"batch": pytest.approx(2.0), "other": pytest.approx(0.5)}
    assert found.long_waits == 1
    assert found.ran_s == pytest.approx(0.0005)


def test_who_is_put_aside_waits_too_but_was_not_woken() -> None:
    found = waits(to(0.0, CRITICAL), to(1.0, BATCH, CRITICAL, runnable=True), to(3.0, CRITICAL, BATCH))
    assert found.woken_ms == []
    assert found.preempted_ms == [pytest.approx(2.0)]
    assert found.blamed_ms == {"batch": pytest.approx(2.0)}


def test_a_thread_that_slept_has_not_waited() -> None:
    found = waits(to(0.0, CRITICAL), to(1.0, BATCH, CRITICAL), to(3.0, CRITICAL, BATCH))
    assert (found.woken_ms, found.preempted_ms) == ([], [])


def test_a_thread_that_is_woken_while_it_still_runs_does_not_wait() -> None:
    found = waits(to(0.0, CRITICAL), WakeUp(0.0005, 1, CRITICAL), to(1.0, BATCH, CRITICAL), to(9.0, CRITICAL, BATCH))
    assert (found.woken_ms, found.preempted_ms) == ([], [])


def test_interrupts_are_blamed_on_themselves_and_do_not_count_as_running() -> None:
    found = waits(
        to(0.0, BATCH),
        Interrupt(0.001, 0, True, "softirq RCU"),
        WakeUp(0.001, 0, CRITICAL),
        Interrupt(0.0015, 0, True, "local timer interrupt"),
        Interrupt(0.0016, 0, False),
        Interrupt(0.002, 0, False),
        to(2.5, CRITICAL, BATCH),
        Interrupt(0.003, 0, True, "softirq RCU"),
        Interrupt(0.0032, 0, True, "local timer interrupt"),
        Interrupt(0.0035, 0, False),
        Interrupt(0.004, 0, False),
        to(5.0, BATCH, CRITICAL),
    )
    assert found.blamed_ms == {
        "softirq RCU": pytest.approx(0.9),
        "local timer interrupt": pytest.approx(0.1),
        "batch": pytest.approx(0.5),
    }
    assert found.ran_s == pytest.approx(0.0015)
    assert found.interrupted_ms == {"softirq RCU": pytest.approx(0.7), "local timer interrupt": pytest.approx(0.3)}


def test_the_wake_up_of_an_idle_pcpu_is_blamed_on_nobody() -> None:
    found = waits(to(0.0, 0, CRITICAL), WakeUp(0.001, 0, CRITICAL), to(2.0, CRITICAL))
    assert found.blamed_ms == {NOBODY: pytest.approx(1.0)}


def test_short_waits_are_counted_and_blamed_on_nobody() -> None:
    found = waits(to(0.0, BATCH), WakeUp(0.001, 0, CRITICAL), to(1.05, CRITICAL, BATCH))
    assert (len(found.woken_ms), found.long_waits, found.blamed_ms) == (1, 0, {})


def test_what_perf_prints_is_understood() -> None:
    lines = [
        "   123 [001]  5066.409182345: sched:sched_switch: CPU 0/TCG:123 [120] R ==> swapper/1:0 [120]",
        "  4711 [000]  5066.509182345: sched:sched_switch: prev_comm=a b prev_pid=4711 prev_prio=120 prev_state=S ==> "
        "next_comm=CPU 1/TCG next_pid=12 next_prio=120",
        "     0 [001]  5066.609182345: sched:sched_wakeup: CPU 0/TCG:123 [120] CPU:000",
        "     0 [001]  5066.609182345: sched:sched_wakeup: comm=memcached pid=99 prio=120 target_cpu=001",
        "     0 [001]  5066.709182345: irq:softirq_entry: vec=1 [action=TIMER]",
        "     0 [001]  5066.809182345: irq:irq_handler_exit: irq=5 ret=handled",
        "     0 [001]  5066.809182345: irq:irq_handler_entry: irq=36 name=virtio1-req.0",
        "10930 [000] 28086.534040412: irq_vectors:local_timer_entry: vector=236",
        "garbage",
    ]
    assert list(parse(lines)) == [
        Switch(5066.409182345, 1, 123, True, 0, "swapper/1"),
        Switch(5066.509182345, 0, 4711, False, 12, "CPU 1/TCG"),
        WakeUp(5066.609182345, 0, 123),
        WakeUp(5066.609182345, 1, 99),
        Interrupt(5066.709182345, 1, True, "softirq TIMER"),
        Interrupt(5066.809182345, 1, False),
        Interrupt(5066.809182345, 1, True, "device interrupt"),
        Interrupt(28086.534040412, 0, True, "local timer interrupt"),
    ]
