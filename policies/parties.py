"""`parties`: each application has pCPUs of its own, and one at a time moves to where the slack is least.

Chen, Delimitrou, Martínez, "PARTIES: QoS-aware resource partitioning for multiple interactive services", ASPLOS 2019,
section 4, and the authors' published manager. What is left out and why is in docs/concepts/policies.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from zlib import crc32

from manager.model.cpus import CpuSet, format_cpus
from manager.model.decision import CpusGoal, Decision, Memory, Snapshot, WaysGoal
from manager.model.topology import Pcpu
from manager.model.units import percent
from policies.cores import (
    Sampling,
    batch_vms,
    cpus_goal,
    hardware_of,
    managed,
    nearest,
    ordered_cpus,
    owner_of,
    owners,
    pack,
    sample,
    share_evenly,
    weight_goals,
)

SMALL_SLACK = 0.05
"""An application with less is upsized."""
LARGE_SLACK = 0.2
"""One with more may be downsized."""
JUDGED_SAMPLES = 5
"""By so many samples a step is judged, and for as many is waited after one that was undone."""
HOLD_SAMPLES = 100
"""For so many of its samples an application is not downsized after that did harm."""
SILENT_AGES = 2
"""A step is not judged any more when no sample came for so many times ``Law.max_age_s``."""
REST = "*rest*"
"""Who owns what no application has: the batch VMs. No application has such a name."""


class Wheel(StrEnum):
    """A resource of which units move, in the order in which they are tried."""

    CORES = "cores"
    CACHE = "cache"


class StepPhase(StrEnum):
    """What is under way: an upsize or a downsize is judged, or what was undone is to show (twice at most)."""

    UP = "up"
    DOWN = "down"
    WAIT = "wait"
    WAIT_MORE = "wait_more"


Shares = Mapping[str, frozenset[int]]
"""The units of one wheel by owner, REST among them."""


@dataclass(frozen=True, slots=True)
class UnitPool:
    """All there is to divide: units by wheel, in order, among ``sharers``, and batch VMs where there are any."""

    units: tuple[tuple[Wheel, tuple[int, ...]], ...]
    sharers: tuple[str, ...]
    batch: bool

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        """Those of which there is a unit for each; of others nothing moves."""
        return tuple(wheel for wheel, units in self.units if len(units) >= len(self.sharers) + self.rest_keeps(wheel))

    def rest_keeps(self, wheel: Wheel) -> int:
        """How many units batch VMs keep: a cache cannot be used without a way, but pCPUs can be those of others."""
        return int(self.batch and wheel is Wheel.CACHE)


@dataclass(frozen=True, slots=True)
class Slack:
    """An application's slack in its newest sample, in the mean of the last ten, and that sample and its time."""

    now: float
    long: float
    latency_ms: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Watch:
    """A step that is being judged.

    ``unit`` went from ``donor`` to ``receiver`` at ``since_s`` (steady seconds), or back. ``number`` is that of the
    application's sample counted last, ``at_s`` when that was. ``failed`` counts the wheels of this round that brought
    nothing.
    """

    phase: StepPhase
    application: str
    wheel: Wheel
    donor: str
    receiver: str
    unit: int
    latency_ms: float
    number: int
    since_s: float
    at_s: float
    failed: int = 0
    left: int = JUDGED_SAMPLES
    score: int = 0


@dataclass(frozen=True, slots=True)
class PartiesMemory:
    """The memory of this policy. ``holds`` are numbers of samples until which an application is not downsized."""

    pool: UnitPool
    shares: Mapping[Wheel, Shares]
    wheels: Mapping[str, Wheel]
    samplings: Mapping[str, Sampling] = field(default_factory=dict)
    holds: Mapping[str, int] = field(default_factory=dict)
    watch: Watch | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepMoment:
    """What a step is decided by. ``slacks`` are those of applications with an SLA and a fresh sample."""

    steady_s: float
    max_age_s: float
    slacks: Mapping[str, Slack]
    hardware: Mapping[int, Pcpu] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parties:
    """Partitions that follow response times, one step after the other."""

    name: str = "parties"
    summary: str = "Baseline (PARTIES, 2019): pCPUs of its own for each application, moved one at a time by slack."
    sample_s: float = 0.5

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        """The pCPUs of every managed VM."""
        pool = pool_of(snapshot)
        kept = memory if isinstance(memory, PartiesMemory) and memory.pool == pool else start(pool)
        samplings = {
            view.application.name: sample(view, sla, snapshot, kept.samplings.get(view.application.name))
            for view in snapshot.applications
            if (sla := view.application.sla) is not None and view.application.name in pool.sharers
        }
        new = any(now.number != _number(kept, application) for application, now in samplings.items())
        kept = step(replace(_counted(kept, samplings), samplings=samplings), _moment(snapshot, samplings), new=new)
        return _decision(self.name, snapshot, kept)


def _counted(kept: PartiesMemory, samplings: Mapping[str, Sampling]) -> PartiesMemory:
    """Without what counts by samples of applications that have none any more: those of a new SLA begin at 0."""
    holds = {name: until for name, until in kept.holds.items() if name in samplings}
    judged = kept.watch if kept.watch and kept.watch.application in samplings else None
    return replace(kept, holds=holds, watch=judged)


def pool_of(snapshot: Snapshot) -> UnitPool:
    """What there is to divide: pCPUs, and the ways of the cache where the host is to divide that."""
    units = [(Wheel.CORES, ordered_cpus(snapshot))]
    if snapshot.cache_ways:
        units.append((Wheel.CACHE, tuple(range(snapshot.cache_ways))))
    return UnitPool(tuple(units), owners(snapshot), bool(batch_vms(snapshot)))


def start(pool: UnitPool) -> PartiesMemory:
    """Everything split evenly; each application begins with a wheel of its own."""
    sharers = (*pool.sharers, REST) if pool.batch else pool.sharers
    units = dict(pool.units)
    shares = {wheel: {REST: frozenset[int](), **share_evenly(units[wheel], sharers)} for wheel in pool.wheels}
    wheels = {application: first_wheel(application, pool.wheels) for application in pool.sharers if pool.wheels}
    return PartiesMemory(pool, shares, wheels)


def first_wheel(application: str, wheels: tuple[Wheel, ...]) -> Wheel:
    """At random in the paper; here by a hash of the name, so that equal inputs give equal decisions."""
    return wheels[crc32(application.encode()) % len(wheels)]


def next_wheel(wheel: Wheel, wheels: tuple[Wheel, ...]) -> Wheel:
    """The one that is tried after it."""
    return wheels[(wheels.index(wheel) + 1) % len(wheels)]


def step(kept: PartiesMemory, moment: StepMoment, *, new: bool) -> PartiesMemory:
    """The next state. ``new``: a sample is complete; without one nothing is decided."""
    if not kept.pool.wheels:
        return kept
    watch = kept.watch
    if watch is None:
        return _choose(kept, moment) if new else kept
    number = _number(kept, watch.application)
    if number == watch.number:
        silent = moment.steady_s - watch.at_s > SILENT_AGES * moment.max_age_s
        return replace(kept, watch=None) if silent else kept
    score = watch.score + _vote(watch, moment.slacks)
    watch = replace(watch, number=number, at_s=moment.steady_s, left=watch.left - 1, score=score)
    return replace(kept, watch=watch) if watch.left else _conclude(replace(kept, watch=None), watch, moment)


def _vote(watch: Watch, slacks: Mapping[str, Slack]) -> int:
    """Whether the newest sample speaks for the step (1) or against it (-1)."""
    if watch.phase is StepPhase.UP:
        slack = slacks.get(watch.application)
        return 1 if slack and slack.latency_ms < watch.latency_ms else -1
    since = [slack for slack in slacks.values() if slack.at_s > watch.since_s]
    return -1 if any(slack.now < SMALL_SLACK for slack in since) else 1


def _conclude(kept: PartiesMemory, watch: Watch, moment: StepMoment) -> PartiesMemory:
    """What follows from all samples of a step. One that helped, or did no harm, is kept, and so is its wheel."""
    if watch.score > 0 or watch.phase is StepPhase.WAIT_MORE:
        return kept
    if watch.phase is StepPhase.WAIT:
        return replace(kept, watch=replace(watch, phase=StepPhase.WAIT_MORE, left=JUDGED_SAMPLES, score=0))
    kept = _advance(kept, watch.application)
    if watch.phase is StepPhase.UP:
        return upsize(kept, watch.application, moment, watch.failed + 1)
    text = f"downsizing was undone: slack of an application fell below {percent(SMALL_SLACK)}"
    kept = _move(kept, watch.wheel, watch.unit, watch.receiver, watch.donor, text)
    holds = {**kept.holds, watch.application: watch.number + HOLD_SAMPLES}
    watch = replace(watch, phase=StepPhase.WAIT, since_s=moment.steady_s, left=JUDGED_SAMPLES, score=0)
    return replace(_sampled_anew(kept, moment), holds=holds, watch=watch)


def _choose(kept: PartiesMemory, moment: StepMoment) -> PartiesMemory:
    """Upsize the application with the least slack, else downsize the one with the most."""
    short = [name for name, slack in moment.slacks.items() if max(slack.now, slack.long) < SMALL_SLACK]
    if short:
        return upsize(kept, min(short, key=lambda name: (moment.slacks[name].long, name)), moment)
    ample = [
        name
        for name, slack in moment.slacks.items()
        if min(slack.now, slack.long) > LARGE_SLACK and _number(kept, name) >= kept.holds.get(name, 0)
    ]
    for name in sorted(ample, key=lambda name: (-moment.slacks[name].now, name)):
        smaller = downsize(kept, name, moment)
        if smaller.watch:
            return smaller
    return kept


def upsize(kept: PartiesMemory, application: str, moment: StepMoment, failed: int = 0) -> PartiesMemory:
    """A unit more for an application, on the first of the wheels not yet tried in this round that has one to give.

    Nothing where all were tried, or its samples are not fresh any more.
    """
    for tried in range(failed, len(kept.pool.wheels) if application in moment.slacks else failed):
        wheel = kept.wheels[application]
        donor = _donor(kept, wheel, application, moment.slacks)
        if donor is None:
            kept = _advance(kept, application)
            continue
        if kept.wheels.get(donor) is wheel:
            kept = _advance(kept, donor)
        return _begin(kept, StepPhase.UP, application, (wheel, donor, application), moment, tried)
    return kept


def downsize(kept: PartiesMemory, application: str, moment: StepMoment) -> PartiesMemory:
    """A unit less for an application, unless it has only one on each wheel."""
    for tried in range(len(kept.pool.wheels)):
        wheel = kept.wheels[application]
        if len(kept.shares[wheel][application]) > 1:
            return _begin(kept, StepPhase.DOWN, application, (wheel, application, REST), moment, tried)
        kept = _advance(kept, application)
    return kept


def _donor(kept: PartiesMemory, wheel: Wheel, application: str, slacks: Mapping[str, Slack]) -> str | None:
    """Who gives a unit: what is free or batch's, else the other application with most slack that has two or more."""
    shares = kept.shares[wheel]
    if len(shares[REST]) > kept.pool.rest_keeps(wheel):
        return REST
    others = [name for name in slacks if name != application and len(shares[name]) > 1]
    return max(others, key=lambda name: (slacks[name].now, name), default=None)


def _begin(
    kept: PartiesMemory,
    phase: StepPhase,
    application: str,
    route: tuple[Wheel, str, str],
    moment: StepMoment,
    failed: int,
) -> PartiesMemory:
    """Move a unit and begin to judge that."""
    wheel, donor, receiver = route
    slack = moment.slacks[application]
    unit = nearest(kept.shares[wheel][donor], kept.shares[wheel][receiver], moment.hardware)
    text = f"{application} was {phase}sized at slack {percent(slack.now)}"
    kept = _move(kept, wheel, unit, donor, receiver, text)
    watch = Watch(
        phase,
        application,
        wheel,
        donor,
        receiver,
        unit,
        slack.latency_ms,
        number=_number(kept, application),
        since_s=moment.steady_s,
        at_s=moment.steady_s,
        failed=failed,
    )
    return replace(_sampled_anew(kept, moment), watch=watch)


def _sampled_anew(kept: PartiesMemory, moment: StepMoment) -> PartiesMemory:
    """What is judged now is judged by samples that hold nothing from before."""
    samplings = {name: sampling.restarted(moment.steady_s) for name, sampling in kept.samplings.items()}
    return replace(kept, samplings=samplings)


def _move(kept: PartiesMemory, wheel: Wheel, unit: int, donor: str, receiver: str, reason: str) -> PartiesMemory:
    shares = kept.shares[wheel]
    moved = {**shares, donor: shares[donor] - {unit}, receiver: shares[receiver] | {unit}}
    reasons = {**kept.reasons, donor: reason, receiver: reason}
    return replace(kept, shares={**kept.shares, wheel: moved}, reasons=reasons)


def _advance(kept: PartiesMemory, application: str) -> PartiesMemory:
    wheel = next_wheel(kept.wheels[application], kept.pool.wheels)
    return replace(kept, wheels={**kept.wheels, application: wheel})


def _number(kept: PartiesMemory, application: str) -> int:
    sampling = kept.samplings.get(application)
    return sampling.number if sampling else 0


def _moment(snapshot: Snapshot, samplings: Mapping[str, Sampling]) -> StepMoment:
    law, slacks = snapshot.host.law, dict[str, Slack]()
    targets_ms = {
        view.application.name: view.application.sla.response_time_ms
        for view in snapshot.applications
        if view.application.sla
    }
    for name, sampling in samplings.items():
        if sampling.is_fresh(snapshot.steady_s, law):
            target_ms = targets_ms[name]
            now, long = sampling.slack(target_ms), sampling.long_slack(target_ms)
            slacks[name] = Slack(now, long, sampling.latencies_ms[-1], sampling.at_s)
    return StepMoment(snapshot.steady_s, law.max_age_s, slacks, hardware_of(snapshot))


def cpus_of(kept: PartiesMemory) -> Mapping[str, CpuSet]:
    """The pCPUs by owner, REST among them.

    With fewer than applications, these share them. Batch VMs without one of their own float over all.
    """
    order = dict(kept.pool.units)[Wheel.CORES]
    cores = kept.shares.get(Wheel.CORES) or (pack(order, kept.pool.sharers) if order else {})
    return cores if cores.get(REST) or not order else {**cores, REST: frozenset(order)}


def _decision(name: str, snapshot: Snapshot, kept: PartiesMemory) -> Decision:
    scale = snapshot.capabilities.weights
    text = f"{name}: batch VMs yield where they have no pCPUs of their own"
    weights = weight_goals(snapshot, scale.default, scale.batch, text) if scale else ()
    cpus = tuple(_cpu_goals(name, snapshot, kept))
    return Decision(weights, kept, cpus=cpus, ways=tuple(_ways_goals(name, kept)), pinning=False)


def _cpu_goals(name: str, snapshot: Snapshot, kept: PartiesMemory) -> Iterator[CpusGoal]:
    cpus = cpus_of(kept)
    for vm in managed(snapshot):
        owner = owner_of(vm) if vm.critical else REST
        own = cpus.get(owner, frozenset())
        why = kept.reasons.get(owner, "split evenly at first")
        goal = cpus_goal(vm, own, f"{name}: pCPUs {format_cpus(own)}: {why}")
        if goal:
            yield goal


def _ways_goals(name: str, kept: PartiesMemory) -> Iterator[WaysGoal]:
    for owner, ways in sorted(kept.shares.get(Wheel.CACHE, {}).items()):
        if owner not in {REST, ""}:
            yield WaysGoal(owner, len(ways), f"{name}: {kept.reasons.get(owner, 'split evenly at first')}")


POLICY = Parties()
