"""How batch VMs fare: progress against running alone, and whether their jobs will be done in time. Pure.

What a VM would use alone is registered, or learnt while it hardly waits. While it waits it would use what it wants, but
no more than that: a vCPU that waits also wants to run for longer. Where instructions are counted, progress is that of
instructions: in the CPU time that it gets a VM runs fewer of them in each cycle while others take caches and memory
bandwidth from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from manager.control.feedback_law import average, wanted_pcpus
from manager.model.decision import Snapshot, VmView
from manager.model.fields import timestamp
from manager.model.host import VmInstance
from manager.model.job import MOST_SLOWDOWN, AloneBy, BatchJob, BatchVm, JobState
from manager.model.records import News, Severity
from manager.model.units import percent

FOLLOW_S = 10.0
"""How batch VMs fare is looked at so often, and not in each of shorter intervals: their work takes hours."""
WINDOW_S = 60.0
"""Rates are averages over so long."""
LEARN_S = 600.0
"""What a VM uses alone is an average over so much calm time."""
LEAST_CALM_S = 30.0
"""It is believed after so much of that."""
CALM_SHARE = 0.05
"""A VM is calm while it waits for less than this part of what it wants."""
LEAST_PCPUS = 0.02
"""A VM that wants less has no work at present."""
LEAST_SPEED = 0.001
JUDGED_S = 30.0
"""Before a VM was seen for so long it is not called slow."""
HYSTERESIS = 0.05
MOST_AWAY = 100
"""Accounts of so many VMs that do not run here (any more) are kept, those with the latest deadlines."""

NO_JOB = BatchJob()


class CpuUsed(NamedTuple):
    """CPU time that a run of a VM used since it started, in seconds."""

    instance: VmInstance
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Account:
    """Since when the work of a job counts: ``begun_cpu_s`` is what that run of the VM had used then."""

    deadline_s: float
    cpu_seconds: float
    instance: VmInstance
    begun_cpu_s: float


@dataclass(frozen=True, slots=True)
class Followed:
    """What is remembered of a batch VM; averages are None before it was seen for an interval.

    ``job_s``: how long its work has counted while it was seen. ``ipc``: its instructions per cycle, ``calm_ipc``: those
    while it was calm; None where they are not counted, or were not then.
    """

    got_pcpus: float | None = None
    wants_pcpus: float | None = None
    would_pcpus: float | None = None
    seen_s: float = 0.0
    alone_pcpus: float | None = None
    calm_s: float = 0.0
    job_s: float = 0.0
    state: JobState | None = None
    state_text: str = ""
    too_slow: bool = False
    slow_text: str = ""
    ipc: float | None = None
    calm_ipc: float | None = None

    @property
    def speed(self) -> float | None:
        """Its instructions per cycle as a part of those in calm, at least ``LEAST_SPEED``; None: not known."""
        if self.ipc is None or self.calm_ipc is None or self.calm_s < LEAST_CALM_S:
            return None
        return min(max(self.ipc / self.calm_ipc, LEAST_SPEED), 1.0)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How the batch VMs of a host fare, by name, what is remembered of them, and the accounts of their jobs."""

    vms: tuple[BatchVm, ...] = ()
    followed: Mapping[str, Followed] = field(default_factory=dict)
    accounts: Mapping[str, Account] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[News, ...]:
        """What an operator should know, in texts that last as their reasons do."""
        return tuple(note for vm, each in sorted(self.followed.items()) for note in _notes(vm, each))


def _notes(vm: str, each: Followed) -> Iterator[News]:
    text = each.state_text
    match each.state:
        case JobState.AT_RISK:
            yield News(Severity.WARNING, "job-at-risk", text, vm)
        case JobState.INFEASIBLE:
            yield News(Severity.WARNING, "job-infeasible", text, vm)
        case JobState.MISSED:
            yield News(Severity.ERROR, "job-missed", text, vm)
        case JobState.DONE:
            yield News(Severity.INFO, "job-done", text, vm)
    if each.too_slow:
        yield News(Severity.WARNING, "job-too-slow", each.slow_text, vm)


def follow(snapshot: Snapshot, used: Mapping[str, CpuUsed], before: BatchProgress) -> BatchProgress:
    """The progress after one more interval. ``used`` is by name of the VM. Deterministic and pure."""
    followed: dict[str, Followed] = {}
    # Also of VMs that are off or cannot be read now: the next run is another instance. Not of all that ever were here.
    away = sorted(before.accounts.keys() - used.keys(), key=lambda vm: before.accounts[vm].deadline_s)
    forgotten = frozenset(away[:-MOST_AWAY])
    accounts = {vm: account for vm, account in before.accounts.items() if vm not in forgotten}
    vms: list[BatchVm] = []
    pcpus = len(snapshot.capabilities.online_cpus)
    counted = {use.vm: 1 / use.cycles_per_instruction for use in snapshot.resources.vms if use.cycles_per_instruction}
    for view in snapshot.vms:
        if view.critical or view.name not in used:
            continue
        job, cpu = view.spec.job or NO_JOB, used[view.name]
        account = _account(job, cpu, before.accounts.get(view.name))
        if account is not None:
            accounts[view.name] = account
        else:
            accounts.pop(view.name, None)
        then = before.followed.get(view.name)
        if then is None:  # what it did since the tick before is not known
            followed[view.name] = Followed()
            continue
        same = account is not None and account == before.accounts.get(view.name)
        job_s = then.job_s + snapshot.interval_s if same else 0.0
        now = _averaged(view, job, pcpus, snapshot.interval_s, then, job_s, counted.get(view.name))
        status = _status(view, job, now, account, cpu, snapshot.now_s)
        followed[view.name] = _announced(status, view, job, now, snapshot.now_s)
        vms.append(status)
    return BatchProgress(tuple(vms), followed, accounts)


def accounts_text(accounts: Mapping[str, Account]) -> str:
    """The accounts as text, to be read by ``read_accounts``; empty for none."""
    rows = {
        vm: [each.deadline_s, each.cpu_seconds, list(each.instance), each.begun_cpu_s]
        for vm, each in sorted(accounts.items())
    }
    return json.dumps(rows, separators=(",", ":")) if rows else ""


def read_accounts(text: str) -> dict[str, Account]:
    """The inverse. Raises ValueError, TypeError or KeyError for other text."""
    accounts = {}
    for vm, (deadline_s, cpu_seconds, (uuid, libvirt_name, pid, ticks), begun_cpu_s) in json.loads(
        text or "{}"
    ).items():
        instance = VmInstance(str(uuid), str(libvirt_name), int(pid), int(ticks))
        accounts[str(vm)] = Account(float(deadline_s), float(cpu_seconds), instance, float(begun_cpu_s))
    return accounts


def most_pcpus(view: VmView) -> float:
    """CPU seconds a second that a VM can use at most."""
    return min(view.vcpus, view.spec.max_pcpus or view.vcpus)


def _account(job: BatchJob, cpu: CpuUsed, before: Account | None) -> Account | None:
    """A VM that started again begins its work anew; a deadline that moved does not, unless the work was done."""
    if job.deadline_s is None or job.cpu_seconds is None:
        return None
    if before is None or before.cpu_seconds != job.cpu_seconds:
        return Account(job.deadline_s, job.cpu_seconds, cpu.instance, cpu.cpu_s)
    if before.instance != cpu.instance:
        return Account(job.deadline_s, job.cpu_seconds, cpu.instance, 0.0)
    if before.deadline_s == job.deadline_s:
        return before
    done = cpu.cpu_s - before.begun_cpu_s >= job.cpu_seconds
    return replace(before, deadline_s=job.deadline_s, begun_cpu_s=cpu.cpu_s if done else before.begun_cpu_s)


def _averaged(
    view: VmView, job: BatchJob, pcpus: int, interval_s: float, then: Followed, job_s: float, ipc: float | None
) -> Followed:
    got, wants = view.cpu_share * pcpus, wanted_pcpus(view, pcpus)
    alone_pcpus, calm_s, calm_ipc = then.alone_pcpus, then.calm_s, then.calm_ipc
    if got >= LEAST_PCPUS and wants - got <= CALM_SHARE * wants:
        calm_s = min(calm_s + interval_s, max(LEARN_S, interval_s))
        alone_pcpus = average(alone_pcpus, got, interval_s / calm_s)
        calm_ipc = calm_ipc if ipc is None else average(calm_ipc, ipc, interval_s / calm_s)
    known, _ = _alone(job, alone_pcpus, calm_s)
    would = wants if known is None else min(wants, max(known, got))
    seen_s = min(then.seen_s + interval_s, max(WINDOW_S, interval_s))
    smoothing = interval_s / seen_s
    return Followed(  # by position: there are many
        average(then.got_pcpus, got, smoothing),
        average(then.wants_pcpus, wants, smoothing),
        average(then.would_pcpus, would, smoothing),
        seen_s,
        alone_pcpus,
        calm_s,
        job_s,
        then.state,
        then.state_text,
        then.too_slow,
        then.slow_text,
        None if ipc is None else average(then.ipc, ipc, smoothing),
        calm_ipc,
    )


def _alone(job: BatchJob, learnt_pcpus: float | None, calm_s: float) -> tuple[float | None, AloneBy]:
    if job.alone_pcpus is not None:
        return job.alone_pcpus, AloneBy.REGISTERED
    if learnt_pcpus is not None and calm_s >= LEAST_CALM_S:
        return learnt_pcpus, AloneBy.LEARNT
    return None, AloneBy.UNKNOWN


def _status(view: VmView, job: BatchJob, now: Followed, account: Account | None, cpu: CpuUsed, now_s: float) -> BatchVm:
    got, would = now.got_pcpus or 0.0, now.would_pcpus or 0.0
    slowdown = None
    if would >= LEAST_PCPUS:
        slowdown = min(max(would / got, 1.0) / (now.speed or 1.0), MOST_SLOWDOWN) if got > 0 else MOST_SLOWDOWN
    alone_pcpus, alone_by = _alone(job, now.alone_pcpus, now.calm_s)
    status = BatchVm(
        view.name,
        round(got, 3),
        round(now.wants_pcpus or 0.0, 3),
        round(would, 3),
        None if slowdown is None else round(slowdown, 3),
        alone_by,
        None if alone_pcpus is None else round(alone_pcpus, 3),
        too_slow=_too_slow(job, slowdown, now),
        speed=None if now.speed is None else round(now.speed, 3),
    )
    if account is None:
        return status
    done_cpu_s = min(max(cpu.cpu_s - account.begun_cpu_s, 0.0), account.cpu_seconds)
    left_cpu_s, left_s = account.cpu_seconds - done_cpu_s, account.deadline_s - now_s
    needed = left_cpu_s / left_s if left_s > 0 else None
    return replace(
        status,
        state=_state(view, now, left_cpu_s, needed),
        done_cpu_s=round(done_cpu_s, 1),
        needed_pcpus=round(needed, 3) if needed is not None and left_cpu_s > 0 else None,
    )


def _too_slow(job: BatchJob, slowdown: float | None, now: Followed) -> bool:
    if job.max_slowdown is None or slowdown is None or now.seen_s < JUDGED_S:
        return False
    return slowdown > job.max_slowdown * (1 - HYSTERESIS * now.too_slow)


def _state(view: VmView, now: Followed, left_cpu_s: float, needed_pcpus: float | None) -> JobState:
    if left_cpu_s <= 0 and not (needed_pcpus is None and now.state is JobState.MISSED):
        return JobState.DONE
    if needed_pcpus is None:
        return JobState.MISSED
    if needed_pcpus > most_pcpus(view):
        return JobState.INFEASIBLE
    if now.job_s < WINDOW_S:  # its weight is new, and the mean is still that of before
        return JobState.ON_TRACK
    risky = now.state in {JobState.AT_RISK, JobState.INFEASIBLE}
    enough = needed_pcpus * (1 + HYSTERESIS if risky else 1 - HYSTERESIS)
    return JobState.AT_RISK if (now.got_pcpus or 0.0) < enough else JobState.ON_TRACK


def _announced(status: BatchVm, view: VmView, job: BatchJob, now: Followed, now_s: float) -> Followed:
    """With texts for what is new: they keep the numbers that they began with, so that they are reported once."""
    if status.state != now.state:
        now = replace(now, state=status.state, state_text=_text(status, view, job, now_s))
    if status.too_slow != now.too_slow:
        slow = (
            f"{status.vm} runs {status.slowdown or 1:.2f} times slower than alone, agreed are {job.max_slowdown or 1:g}"
        )
        text = f"{slow}: it gets {status.got_pcpus:.2f} of the {status.would_pcpus:.2f} pCPUs that it would use"
        if status.speed is not None and status.speed < 1:
            text += f", and runs {percent(status.speed)} of the instructions per cycle that it runs in calm"
        now = replace(now, too_slow=status.too_slow, slow_text=text if status.too_slow else "")
    return now


def _text(status: BatchVm, view: VmView, job: BatchJob, now_s: float) -> str:
    if job.deadline_s is None or job.cpu_seconds is None or status.done_cpu_s is None:
        return ""
    left_cpu_s, left_s = job.cpu_seconds - status.done_cpu_s, job.deadline_s - now_s
    by = timestamp(job.deadline_s).isoformat(timespec="seconds").replace("+00:00", "Z")
    done = f"{status.done_cpu_s:.0f} of {job.cpu_seconds:.0f} CPU seconds are done"
    rate = left_cpu_s / left_s if left_s > 0 else 0.0
    needs = f"{status.vm} needs {left_cpu_s:.0f} CPU seconds until {by}, {rate:.2f} pCPUs"
    if status.state is JobState.AT_RISK:
        late = max(left_cpu_s - status.got_pcpus * left_s, 0.0)
        return f"{needs}, but gets {status.got_pcpus:.2f}: {late:.0f} CPU seconds would be missing; {done}"
    if status.state is JobState.INFEASIBLE:
        return f"{needs}, but can use {most_pcpus(view):g} at most: the deadline cannot be met; {done}"
    if status.state is JobState.MISSED:
        return f"{status.vm} missed its deadline {by}: {done}"
    if status.state is JobState.DONE:
        return f"{status.vm} has done its {job.cpu_seconds:.0f} CPU seconds; its deadline is {by}"
    return ""
