"""Progress of batch VMs against running alone, and whether their jobs will be done in time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.control.batch_claims import divide_by_claims
from manager.control.batch_progress import (
    Account,
    BatchProgress,
    CpuUsed,
    accounts_text,
    follow,
    read_accounts,
)
from manager.control.deadline_weights import DividedThen
from manager.control.job_promise import objection
from manager.control.resolve import validate
from manager.model.decision import Decision, IdleGoal, Snapshot, VmView, WeightGoal
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, VmInstance
from manager.model.job import AloneBy, BatchJob, BatchVm, JobState
from manager.model.law import Law
from manager.model.records import Severity
from manager.model.registration import HostSpec, VmClass
from manager.model.resource_use import ResourceUse, VmResources
from tests.unit.build import capabilities, view

RUN = VmInstance("u", "render", 1, 1)
INTERVAL_S = 5.0


def batch(name: str = "render", job: BatchJob | None = None, vcpus: int = 2) -> VmView:
    found = view(name, VmClass.BATCH, vcpus=vcpus, weight=1)
    return replace(found, spec=replace(found.spec, job=job))


class Life:
    """A batch VM on a host of four pCPUs, interval by interval."""

    def __init__(self, job: BatchJob | None = None, vcpus: int = 2) -> None:
        self.vm, self.progress = batch(job=job, vcpus=vcpus), BatchProgress()
        self.now_s, self.cpu_s, self.run = 1000.0, 50.0, RUN

    def go(self, intervals: int, got: float, waits: float = 0.0, cpi: float | None = None) -> BatchVm | None:
        resources = ResourceUse((VmResources("render", cycles_per_instruction=cpi),))
        for _ in range(intervals):
            seen = replace(self.vm, cpu_share=got / 4, run_delay_share=waits)
            vms = (seen, view("web"))
            moment = Snapshot(self.now_s, INTERVAL_S, HostSpec("h1"), capabilities(), vms, resources=resources)
            self.progress = follow(moment, {"render": CpuUsed(self.run, self.cpu_s)}, self.progress)
            self.now_s += INTERVAL_S
            self.cpu_s += got * INTERVAL_S
        return self.progress.vms[0] if self.progress.vms else None

    def begin(self, job: BatchJob) -> None:
        self.vm = replace(self.vm, spec=replace(self.vm.spec, job=job))

    @property
    def events(self) -> list[tuple[Severity, str]]:
        return [note[:2] for note in self.progress.notes]


def due(in_s: float, cpu_seconds: float, **more: float) -> BatchJob:
    return BatchJob(1000.0 + in_s, cpu_seconds, **more)


def test_nothing_is_said_of_the_first_interval() -> None:
    assert Life().go(1, 1.0) is None


def test_what_it_uses_alone_is_learnt_while_it_is_calm() -> None:
    life = Life()
    calm = life.go(8, 1.0)
    assert calm is not None
    assert (calm.alone_by, calm.alone_pcpus, calm.slowdown, calm.progress) == (AloneBy.LEARNT, 1.0, 1.0, 1.0)
    busy = life.go(60, 0.5, waits=1.2)  # it wants 1.7, because each wait makes its work last longer
    assert busy is not None
    assert busy.slowdown == pytest.approx(2.0, rel=0.02)
    assert (busy.wants_pcpus, busy.would_pcpus) == (pytest.approx(1.7, rel=0.02), pytest.approx(1.0, rel=0.02))


def test_progress_is_that_of_instructions_where_they_are_counted() -> None:
    """The same CPU time, of which a neighbour makes half: first a part of the CPU time, then that part of the cache."""
    life = Life(BatchJob(max_slowdown=2.5))
    calm = life.go(20, 1.0, cpi=0.8)
    assert calm is not None and (calm.speed, calm.slowdown) == (1.0, 1.0)
    shares = life.go(60, 0.5, waits=1.2, cpi=0.8)
    assert shares is not None and (shares.speed, shares.slowdown) == (1.0, pytest.approx(2.0, rel=0.02))
    harmed = life.go(60, 0.5, waits=1.2, cpi=1.6)
    assert harmed is not None
    assert (harmed.speed, harmed.slowdown) == (pytest.approx(0.5, rel=0.02), pytest.approx(4.0, rel=0.03))
    assert harmed.progress == pytest.approx(0.25, rel=0.03)
    assert harmed.too_slow and "instructions per cycle" in life.progress.followed["render"].slow_text


@pytest.mark.parametrize("cpi", [None, 0.4])
def test_where_nothing_is_counted_or_it_is_faster_than_in_calm_cpu_time_counts(cpi: float | None) -> None:
    life = Life()
    life.go(20, 1.0, cpi=0.8)
    found = life.go(60, 0.5, waits=1.2, cpi=cpi)
    assert found is not None and found.slowdown == pytest.approx(2.0, rel=0.02)
    assert found.speed == (None if cpi is None else 1.0)


def test_without_calm_time_it_would_use_what_it_wants() -> None:
    found = Life().go(30, 0.5, waits=1.0)
    assert found is not None
    assert (found.alone_by, found.alone_pcpus, found.slowdown) == (AloneBy.UNKNOWN, None, 3.0)


def test_the_registered_rate_counts_before_what_was_learnt() -> None:
    found = Life(BatchJob(alone_pcpus=0.8)).go(30, 0.4, waits=1.0)
    assert found is not None
    assert (found.alone_by, found.slowdown) == (AloneBy.REGISTERED, 2.0)


def test_a_vm_without_work_is_not_slow() -> None:
    life = Life()
    life.go(20, 1.0)
    found = life.go(60, 0.0)
    assert found is not None
    assert (found.slowdown, found.progress) == (None, None)


def test_one_that_waits_and_gets_nothing_is_as_slow_as_can_be() -> None:
    found = Life().go(20, 0.0, waits=2.0)
    assert found is not None
    assert found.slowdown == 1000.0


@pytest.mark.parametrize(
    ("job", "got", "intervals", "state"),
    [
        (due(1000, 900), 1.0, 20, JobState.ON_TRACK),
        (due(1000, 900), 0.5, 20, JobState.AT_RISK),
        (due(1000, 900), 0.5, 11, JobState.ON_TRACK),  # too early to tell
        (due(400, 900), 0.5, 2, JobState.INFEASIBLE),
        (due(1000, 50), 1.0, 20, JobState.DONE),
        (due(50, 90), 1.0, 15, JobState.MISSED),
        (due(50, 90), 1.0, 30, JobState.MISSED),  # done, but too late
    ],
)
def test_states_of_a_job(job: BatchJob, got: float, intervals: int, state: JobState) -> None:
    found = Life(job).go(intervals, got)
    assert found is not None
    assert found.state is state


def test_a_risk_is_announced_once_with_numbers_until_it_is_over() -> None:
    life = Life(due(1000, 900))
    life.go(11, 0.5)
    assert life.events == [], "its weight is new"
    life.go(4, 0.5)
    [(severity, kind, text, vm)] = life.progress.notes
    assert (severity, kind, vm) == (Severity.WARNING, "job-at-risk", "render")
    assert text.startswith("render needs 8")
    assert "pCPUs, but gets 0.50: " in text
    life.go(3, 0.5)
    assert [note.text for note in life.progress.notes] == [text]
    life.go(20, 2.0)
    assert life.events == []
    life.go(200, 2.0)
    assert life.events == [(Severity.INFO, "job-done")]


def test_slower_than_agreed_is_announced() -> None:
    life = Life(BatchJob(max_slowdown=1.5, alone_pcpus=1.0))
    found = life.go(20, 0.5, waits=1.0)
    assert found is not None
    assert found.too_slow
    assert found.state is None
    [(severity, kind, text, _)] = life.progress.notes
    assert (severity, kind) == (Severity.WARNING, "job-too-slow")
    assert "2.00 times slower than alone, agreed are 1.5" in text
    life.go(40, 1.0)
    assert life.events == []


def test_work_counts_from_the_registration_and_anew_in_another_run() -> None:
    life = Life()
    life.go(10, 1.0)
    life.begin(due(2000, 500))
    found = life.go(11, 1.0)
    assert found is not None
    assert found.done_cpu_s == 50.0
    life.run, life.cpu_s = VmInstance("u", "render", 2, 2), 7.0
    again = life.go(1, 1.0)
    assert again is not None
    assert again.done_cpu_s == 7.0


def test_another_deadline_only_moves_the_end_unless_the_work_was_done() -> None:
    life = Life(due(1000, 100))
    life.go(11, 1.0)
    life.begin(due(3000, 100))
    moved = life.go(1, 1.0)
    assert moved is not None
    assert moved.done_cpu_s == 55.0
    life.go(20, 1.0)
    life.begin(due(4000, 100))
    anew = life.go(1, 1.0)
    assert anew is not None
    assert anew.done_cpu_s == 0.0


def test_accounts_outlast_the_agent() -> None:
    accounts = {"a": Account(2000.0, 50.0, RUN, 3.5)}
    assert read_accounts(accounts_text(accounts)) == accounts
    assert (accounts_text({}), read_accounts("")) == ("", {})
    with pytest.raises(ValueError, match=r"Expecting|unpack"):
        read_accounts("{")


@pytest.mark.parametrize(
    ("job", "pcpus", "done_cpu_s", "field", "words"),
    [
        (due(100, 200), 2, 0.0, None, ""),
        (due(100, 201), 2, 0.0, "cpu_seconds", "201 is refused; use at most 200: its VM can use 2 pCPUs for the 100 s"),
        (due(100, 201), 2, 10.0, None, ""),
        (due(100, 201), None, 0.0, None, ""),
        (due(0, 1), 2, 0.0, "deadline", "it is not after now"),
        (BatchJob(alone_pcpus=3), 2, 0.0, "alone_pcpus", "3 is refused; its VM can use 2 pCPUs at most"),
        (BatchJob(max_slowdown=2), 2, 0.0, None, ""),
        (due(100.3, 201), 2, 0.0, "cpu_seconds", "201 is refused; use at most 200: "),
        (due(100.3, 200), 2, 0.0, None, ""),
        (due(100, 1_234_567), 2, 0.0, "cpu_seconds", "1234567 is refused; use at most 200: "),
    ],
)
def test_what_cannot_be_agreed(
    job: BatchJob, pcpus: float | None, done_cpu_s: float, field: str | None, words: str
) -> None:
    found = objection(job, pcpus, 1000.0, done_cpu_s)
    assert (found and found[0]) == field
    assert words in (found[1] if found else "")


def fares(vm: str, **changes: object) -> BatchVm:
    return replace(BatchVm(vm, 1.0, 1.0, 1.0, 1.0, AloneBy.LEARNT), **changes)  # type: ignore[arg-type]


def divide(
    *vms: VmView, idle: tuple[str, ...] = (), weight: int = 100, **how: BatchVm
) -> tuple[dict[str, int], Decision]:
    host = HostSpec("h1", law=Law(batch_floor=0.01))
    moment = Snapshot(1000.0, 5.0, host, capabilities(CPU_WEIGHT_V2, 2), (view("web"), *vms))
    goals = (WeightGoal("web", 10_000, "policy"), *(WeightGoal(vm.name, weight, "policy") for vm in vms))
    decision = Decision(tuple(sorted(goals, key=lambda goal: goal.vm)), idle=tuple(IdleGoal(x, True, "") for x in idle))
    found, _ = divide_by_claims(decision, moment, how, DividedThen())
    assert validate(found, moment) is None
    return {goal.vm: goal.weight for goal in found.weights}, found


def test_without_jobs_the_decision_stays() -> None:
    weights, _ = divide(batch("a"), batch("b"), a=fares("a"), b=fares("b"))
    assert weights == {"a": 100, "b": 100, "web": 10_000}


@pytest.mark.parametrize("weight", [1, 1_000_000])
def test_weights_beyond_what_the_kernel_takes_are_divided_as_those_that_it_will_be_given(weight: int) -> None:
    """A policy of a third party may decide them, and they are clamped only afterwards."""
    host = HostSpec("h1", law=Law(batch_floor=0.0))
    vms = batch("a", due(100, 150)), batch("b")
    moment = Snapshot(1000.0, 5.0, host, capabilities(CPU_SHARES_V1), (view("web"), *vms))
    goals = (WeightGoal("a", weight, ""), WeightGoal("b", weight, ""), WeightGoal("web", 10_000, ""))
    how = {"a": fares("a", state=JobState.AT_RISK, needed_pcpus=1.5), "b": fares("b")}
    found, _ = divide_by_claims(Decision(goals), moment, how, DividedThen())
    assert sum(goal.weight for goal in found.weights if goal.vm != "web") == 2 * CPU_SHARES_V1.clamp(weight)


def test_the_job_goes_first_and_critical_vms_keep_their_weight() -> None:
    states = {"a": fares("a", state=JobState.AT_RISK, done_cpu_s=0.0, needed_pcpus=1.5), "b": fares("b")}
    weights, decision = divide(batch("a", due(100, 150)), batch("b"), **states)
    assert weights == {"a": 189, "b": 11, "web": 10_000}
    assert "its job needs 1.50 pCPUs and is granted 1.90" in next(x.reason for x in decision.weights if x.vm == "a")


@pytest.mark.parametrize("state", [JobState.DONE, JobState.MISSED])
def test_a_job_that_is_over_claims_nothing(state: JobState) -> None:
    weights, _ = divide(batch("a", due(100, 150)), batch("b"), a=fares("a", state=state, done_cpu_s=0.0), b=fares("b"))
    assert weights["a"] == weights["b"] == 100


def test_an_agreed_slowdown_is_a_claim() -> None:
    weights, _ = divide(
        batch("a", BatchJob(max_slowdown=1.25)), batch("b"), a=fares("a", would_pcpus=2.0), b=fares("b")
    )
    assert weights["a"] > 180


def test_weights_at_the_minimum_rise_a_little_and_vms_in_the_idle_class_take_no_part() -> None:
    states = {"a": fares("a", state=JobState.AT_RISK, done_cpu_s=0.0, needed_pcpus=1.5), "b": fares("b")}
    weights, _ = divide(batch("a", due(100, 150)), batch("b"), weight=1, **states)
    assert weights["a"] + weights["b"] == 20
    assert weights["a"] > weights["b"]
    idle, _ = divide(batch("a", due(100, 150)), batch("b"), idle=("a", "b"), weight=1, **states)
    assert idle == {"a": 1, "b": 1, "web": 10_000}


@settings(max_examples=30, deadline=None)
@given(needed=st.lists(st.floats(0, 4), min_size=2, max_size=5), weight=st.integers(10, 1000))
def test_the_sum_of_batch_weights_stays_and_critical_ones_do(needed: list[float], weight: int) -> None:
    names = [f"b{number}" for number in range(len(needed))]
    vms = [batch(name, due(100 + number, 100)) for number, name in enumerate(names)]
    states = {
        name: fares(name, state=JobState.AT_RISK, done_cpu_s=0.0, needed_pcpus=each)
        for name, each in zip(names, needed, strict=True)
    }
    weights, _ = divide(*vms, weight=weight, **states)
    assert weights.pop("web") == 10_000
    assert sum(weights.values()) == weight * len(names)
