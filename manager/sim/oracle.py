"""`oracle`: the best static setting of each phase of a scenario, by search. It knows the future, so it is no policy.

A phase is a part of the run in which loads change little. Phase by phase, settings are tried by playing them on from
the state that the settings before led to, in a fork of the process: generators of requests cannot be copied otherwise.
What is found is a lower bound of what can be had: the search is greedy, and neither sees all settings nor changes them
within a phase. It violates SLAs in no more intervals than `priority`, whose schedule it takes where its own is worse.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import ceil, floor
from multiprocessing import get_context
from typing import NamedTuple

from manager.model.decision import Decision, Memory, Snapshot, VmView, WeightGoal
from manager.model.numbers import digits
from manager.sim.results import RunResult
from manager.sim.scenario import Constant, Scenario, Segment
from manager.sim.simulation import EPOCH_S, Simulation

ORACLE = "oracle"
PARTS = (1.0, 1 / 2, 1 / 4, 1 / 16, 1 / 64)
"""Weights that are tried, relative to that of `priority`."""
_DEMOTED = 1 / 16
_LONGEST_PART_S = 60.0
"""Ramps and swings are cut into parts of at most this length."""
_LEAST_INTERVALS, _MOST_PHASES = 4, 10
_AFTER_INTERVALS = 3
"""So many intervals after a phase count for it, for the sake of backlogs."""
_SCORE = struct.Struct("!id")


@dataclass(frozen=True, slots=True)
class StaticSetting:
    """What is static in a phase. ``parts``: by application, its VMs' part of the weight that `priority` gives them.

    ``floats``: critical VMs float although the host pins.
    """

    parts: tuple[float, ...]
    floats: bool = False


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """From interval ``first`` to before interval ``end``."""

    first: int
    end: int


class Score(NamedTuple):
    """Violated intervals, summed over applications, and the sum of their excess, each up to 1. The less the better."""

    violated: int
    excess: float

    def plus(self, other: Score) -> Score:
        """The sum of both."""
        return Score(self.violated + other.violated, self.excess + other.excess)


_NOTHING = Score(0, 0.0)


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How much is tried: ``settings`` in each phase at most, beside the two that are always tried."""

    settings: int = 40


@dataclass(slots=True)
class OracleSchedule:
    """The policy that follows a schedule: settings with the second of the run from which each is in force."""

    applications: tuple[str, ...]
    course: list[tuple[float, StaticSetting]]
    name: str = ORACLE
    summary: str = "Follows a schedule that was found by search."

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:  # noqa: ARG002 - memoryless
        """A weight for every managed VM, and whether critical ones float."""
        scale, now_s = snapshot.capabilities.weights, snapshot.steady_s - EPOCH_S + 1e-3
        setting = [setting for from_s, setting in self.course if from_s <= now_s][-1]
        parts = dict(zip(self.applications, setting.parts, strict=True))
        pinning = False if setting.floats else None
        if scale is None:
            return Decision(pinning=pinning)
        return Decision(
            tuple(self._goal(vm, parts, scale.critical, scale.batch) for vm in snapshot.vms), pinning=pinning
        )

    @staticmethod
    def _goal(vm: VmView, parts: dict[str, float], critical: int, batch: int) -> WeightGoal:
        if not vm.critical:
            return WeightGoal(vm.name, batch, "oracle: batch VM")
        part = parts.get(vm.application or "", 1.0)
        return WeightGoal(
            vm.name, max(round(critical * part), batch), f"oracle: {digits(part)} of a critical VM's weight"
        )


def phases(scenario: Scenario) -> tuple[LoadPhase, ...]:
    """Cut where loads change, into at most _MOST_PHASES, none shorter than _LEAST_INTERVALS; together the whole run."""
    total = Simulation.count_intervals(scenario)
    length_s = total * scenario.interval_s
    cuts = {
        floor(at_s / scenario.interval_s + 1e-9)
        for app in scenario.applications
        for at_s in _changes_s(app.load, length_s)
    }
    ends = [*sorted(cut for cut in cuts if 0 < cut < total), total]
    while len(ends) > 1:
        lengths = [end - first for first, end in pairwise([0, *ends])]
        if len(ends) <= _MOST_PHASES and min(lengths) >= _LEAST_INTERVALS:
            break
        joined = [before + after for before, after in pairwise(lengths)]
        shortest = lengths.index(min(lengths))
        beside = [place for place in (shortest - 1, shortest) if 0 <= place < len(joined)]
        del ends[min(beside, key=lambda place: joined[place])]
    return tuple(LoadPhase(first, end) for first, end in pairwise([0, *ends]))


def _changes_s(load: Sequence[Segment], length_s: float) -> Iterator[float]:
    at_s = 0.0
    while at_s < length_s:
        for segment in load:
            for_s = min(segment.for_s, length_s - at_s)
            if not isinstance(segment, Constant) and for_s > 0:
                parts = ceil(for_s / _LONGEST_PART_S)
                yield from (at_s + for_s * part / parts for part in range(1, parts))
            at_s += segment.for_s
            if at_s >= length_s:
                return
            yield at_s


def run_oracle(
    scenario: Scenario,
    seed: int | None = None,
    on_step: Callable[[], None] = lambda: None,
    limits: SearchLimits = SearchLimits(),
) -> RunResult:
    """One run under the best schedule found. It takes some ten times as long as a run under a policy."""
    if threading.active_count() == 1:
        return _searched(scenario, seed, on_step, limits)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # threads would be lost in a fork
        result = pool.submit(_searched, scenario, seed, limits=limits).result()
    for _ in range(Simulation.count_intervals(scenario)):
        on_step()
    return result


def _searched(
    scenario: Scenario,
    seed: int | None,
    on_step: Callable[[], None] = lambda: None,
    limits: SearchLimits = SearchLimits(),
) -> RunResult:
    search = OracleSearch(scenario, seed, limits)
    result = search.run(on_step)
    usual = play(scenario, [(0.0, search.usual)], seed)
    return result if result.violated_share <= usual.violated_share else usual


def play(scenario: Scenario, course: Sequence[tuple[float, StaticSetting]], seed: int | None = None) -> RunResult:
    """One run under a schedule, the first setting of which is in force from the beginning."""
    policy = OracleSchedule(tuple(app.name for app in scenario.applications), list(course))
    return Simulation(scenario, {ORACLE: policy}, ORACLE, seed=seed).run()


class OracleSearch:
    """A run that decides in each phase what is best by what comes of it. ``course`` is what was decided so far."""

    def __init__(self, scenario: Scenario, seed: int | None = None, limits: SearchLimits | None = None) -> None:
        """``limits`` None: the usual ones."""
        names = tuple(app.name for app in scenario.applications)
        self.usual = StaticSetting((1.0,) * len(names))
        self.course: list[tuple[float, StaticSetting]] = [(0.0, self.usual)]
        self._scenario = scenario
        self._limits = limits or SearchLimits()
        self._policy = OracleSchedule(names, [(0.0, self.usual)])
        self._simulation = Simulation(scenario, {ORACLE: self._policy}, ORACLE, seed=seed)

    def run(self, on_step: Callable[[], None] = lambda: None) -> RunResult:
        """Search and play phase after phase; ``on_step`` is called after each interval."""
        best = self.usual
        for phase in phases(self._scenario):
            best = self._best(phase, best)
            at_s = phase.first * self._scenario.interval_s
            self.course = [*(step for step in self.course if step[0] < at_s), (at_s, best)]
            self._set(best)
            while self._simulation.intervals < phase.end:
                self._interval()
                on_step()
        self._simulation.tick()
        return self._simulation.result()

    def _best(self, phase: LoadPhase, before: StaticSetting) -> StaticSetting:
        """Coordinate descent from the best of some that are likely."""
        scores: dict[StaticSetting, Score] = {}
        best = self.usual
        for setting in dict.fromkeys((self.usual, before, *self._likely())):
            best = self._better(phase, setting, best, scores)
        changed = True
        while changed and not self._is_done(best, scores):
            changed = False
            for setting in self._beside(best):
                found = self._better(phase, setting, best, scores)
                if found != best:
                    best, changed = found, True
                    break
        return best

    def _better(
        self, phase: LoadPhase, setting: StaticSetting, best: StaticSetting, scores: dict[StaticSetting, Score]
    ) -> StaticSetting:
        if setting in scores or (scores and self._is_done(best, scores)):
            return best
        scores[setting] = self._apart(lambda: self._play_phase(phase, setting, scores.get(best)))
        return setting if scores[setting] < scores[best] else best

    def _is_done(self, best: StaticSetting, scores: dict[StaticSetting, Score]) -> bool:
        return scores[best].violated == 0 or len(scores) >= self._limits.settings + 2

    def _likely(self) -> Iterator[StaticSetting]:
        """One application behind, one ahead of the others, and all floating."""
        count = len(self.usual.parts)
        if self._scenario.pinning:
            yield replace(self.usual, floats=True)
        for at in range(count if count > 1 else 0):
            yield StaticSetting(tuple(_DEMOTED if place == at else 1.0 for place in range(count)))
            yield StaticSetting(tuple(1.0 if place == at else _DEMOTED for place in range(count)))

    def _beside(self, setting: StaticSetting) -> Iterator[StaticSetting]:
        """All that differ in one thing. Only proportions matter among applications, so the largest part is 1."""
        if self._scenario.pinning:
            yield replace(setting, floats=not setting.floats)
        for at in range(len(setting.parts)):
            for part in PARTS:
                parts = (*setting.parts[:at], part, *setting.parts[at + 1 :])
                if max(parts) == 1.0 and parts != setting.parts:
                    yield replace(setting, parts=parts)

    def _play_phase(self, phase: LoadPhase, setting: StaticSetting, limit: Score | None) -> Score:
        """In a process of its own. What comes after the phase is played under this setting or `priority`'s."""
        self._set(setting)
        score = self._play(phase.end, limit)
        after = min(phase.end + _AFTER_INTERVALS, Simulation.count_intervals(self._scenario))
        if after == phase.end or (limit is not None and score > limit):
            return score
        later = (self._apart(partial(self._play_after, after, then)) for then in dict.fromkeys((setting, self.usual)))
        return score.plus(min(later))

    def _play_after(self, end: int, setting: StaticSetting) -> Score:
        self._set(setting)
        return self._play(end, None)

    def _play(self, end: int, limit: Score | None) -> Score:
        """Until interval ``end``, or until it is worse than ``limit``."""
        score = _NOTHING
        while self._simulation.intervals < end and (limit is None or score <= limit):
            excesses = self._interval()
            violated = [min(excess, 1.0) for excess in excesses if excess > 0]
            score = score.plus(Score(len(violated), sum(violated)))
        return score

    def _interval(self) -> tuple[float, ...]:
        self._simulation.tick()
        self._simulation.advance()
        return self._simulation.excesses()

    def _set(self, setting: StaticSetting) -> None:
        self._policy.course = [(0.0, setting)]

    @staticmethod
    def _apart(play: Callable[[], Score]) -> Score:
        """What ``play`` answers in a fork of this process, which has but one thread and leaves nothing behind."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(reading)
                os.write(writing, _SCORE.pack(*play()))
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        answer = b""
        try:
            with closing(os.fdopen(reading, "rb")) as pipe:
                answer = pipe.read()
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            os.waitpid(child, 0)
        if len(answer) != _SCORE.size:
            raise RuntimeError("a run that was tried failed")
        violated, excess = _SCORE.unpack(answer)
        return Score(violated, excess)
