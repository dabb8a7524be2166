"""The guard: between ticks it samples the vCPU wait of critical VMs, and holds batch VMs at once where it is too long.

Where the kernel can (``WaitAlarmPort``), it samples by itself while all is calm, looks at answers, and wakes the guard
for what is too much; once a second the guard looks at the last sample, to learn from it.

A thread of its own, because a job of the scheduler costs as much as a whole sample. It and the ticks take turns by one
lock: both read and write the same VMs and the same journal. What it samples and can hold is as of the last tick; what
it holds is part of the plans of the ticks that follow. ``manager.control.guard_law`` decides, ``ControlLoop.hold``
writes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import sub

from manager.control.guard_law import (
    LEARN_EVERY_S,
    LEAST_BOUND,
    SAMPLES_IN_A_ROW,
    End,
    Ended,
    Episode,
    Excess,
    GuardMemory,
    WaitSample,
    after_calm,
    guard,
    quiet_bounds,
)
from manager.control.late_answers import LateShare, SeenAnswers, shares
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.apply import Applied
from manager.loop.tick import ControlLoop
from manager.loop.watches import Background
from manager.model.fields import as_text
from manager.model.host import LastWaits, VmInstance, WaitWatch
from manager.model.knobs import Knob
from manager.model.records import OutcomeKind, Severity
from manager.model.registration import Mode
from manager.model.traffic import Answered
from manager.model.units import percent
from manager.protocol.report import GuardStatus

GUARD = "guard"
"""Kind of its events."""
_LEAST_PAUSE_S = 0.005
_CONFIRM_S = 0.02
"""After a sample above a bound the next comes as soon: it begins an episode, or does not."""
_ANSWERS_EVERY_S = 0.08
"""Answers are looked at this far apart at least, with every other sample: in less time there are too few to tell."""
_AFTER_MISTAKE_S = 10.0
_LATE_SAMPLES = 3.0
"""Where the kernel is late by so many samples, the guard takes them by itself for ``_ALONE_S``."""
_ALONE_S = 10.0
_DONE = frozenset({OutcomeKind.APPLIED, OutcomeKind.RESTORED})
_WHY = {
    End.CALM: "nobody waits any more",
    End.BUDGET: "batch VMs had been held for too much of the time",
    End.FLOOR: "batch VMs got less than their floor",
    End.FUTILE: "it did not help, so batch VMs are not what it waits for",
    End.GONE: "there is nothing left to hold or to protect",
}


class GuardUse(StrEnum):
    """The setting ``guard``. ``observe``: it only tells what it would have done."""

    OFF = "off"
    OBSERVE = "observe"
    ON = "on"


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """The settings ``guard`` and ``guard_interval_ms``."""

    use: GuardUse = GuardUse.OFF
    interval_s: float = 0.05


def _shares(
    names: Iterable[str], before: Iterable[tuple[int, ...]], now: Iterable[tuple[int, ...]], elapsed_s: float
) -> dict[str, float]:
    """Of each VM the share of the time that the vCPU that waited most has waited; of those that were known before."""
    elapsed_ns = max(elapsed_s * 1e9, 1.0)
    return {
        name: min(max(map(sub, later, earlier)) / elapsed_ns, 1.0)
        for name, later, earlier in zip(names, now, before, strict=False)  # nothing is before the first sample
        if later and len(later) == len(earlier)
    }


def _told(excess: Excess) -> str:
    seen, bound = percent(excess.seen), percent(excess.bound)
    if excess.late:
        return f"{excess.name} answered {seen} of its requests too late, its SLA allows {bound}"
    return f"{excess.name} waited {seen} of the time for a pCPU, bound {bound}"


class Guard(Background):
    """Samples every ``interval_s``, and holds and lets go of batch VMs. Nothing runs before ``start``.

    ``turn`` is the lock that ticks take, too. ``say`` gets severity, kind and message of an event at the end of each
    episode, ``crashed`` mistakes of ours. ``answered``: what services have answered until now.
    """

    def __init__(
        self,
        loop: ControlLoop,
        settings: GuardSettings,
        turn: threading.RLock,
        *,
        say: Callable[[Severity, str, str], None],
        crashed: Callable[[str, BaseException], None],
        metrics: AgentMetrics,
        answered: Callable[[], Answered] = Answered,
    ) -> None:
        super().__init__("guard")
        self._loop, self._settings, self._turn = loop, settings, turn
        self._say, self._crashed, self._metrics = say, crashed, metrics
        self._watched: tuple[tuple[VmInstance, str], ...] = ()
        self._instances: tuple[VmInstance, ...] = ()
        self._names: tuple[str, ...] = ()
        self._before: Sequence[tuple[int, ...]] = ()
        self._armed: tuple[tuple[VmInstance, str], ...] = ()  # what the kernel samples
        self._sampled: tuple[str, ...] = ()  # their names, also once they were taken over
        self._alone_until_s = -math.inf
        self._answered, self._look = answered, SeenAnswers(self._now(), answered())
        self._memory = GuardMemory(self._now())
        self._acts = False
        self._reaction_s: float | None = None
        self._held: set[str] = set()
        self._failed = ""
        self._knob = Knob.IDLE
        self.status = GuardStatus(acts=settings.use is GuardUse.ON, holding=False, episodes=0, held_s=0.0)

    def _now(self) -> float:
        return self._loop.clock().monotonic_s

    def ticked(self) -> None:
        """A tick has ended: what is sampled from now on. Called in the tick's turn."""
        watched = self._loop.watched
        if watched != self._watched:
            before = dict(zip(self._instances, self._before, strict=False))
            self._watched = watched
            self._instances = tuple(instance for instance, _ in watched)
            self._before = [before.get(instance, ()) for instance in self._instances]
            self._names = tuple(name for _, name in watched)
        alarm = self._loop.host.wait_alarm
        if alarm is not None and self._armed and not self._is_armed:
            alarm.wake()

    @property
    def _is_armed(self) -> bool:
        """Whether the kernel samples all that is watched."""
        alarm = self._loop.host.wait_alarm
        return alarm is not None and bool(self._armed) and self._armed == self._watched and alarm.is_true

    @property
    def _judges(self) -> bool:
        """Whether the kernel looks at answers, too."""
        alarm = self._loop.host.wait_alarm
        return alarm is not None and bool(self._armed) and alarm.judges

    def look(self, rang: bool = False) -> None:
        """Take one sample, and do what follows from it; ``rang``: the kernel has one that is above a bound."""
        with self._turn:
            now_s = self._now()
            answers: tuple[LateShare, ...] | None = None
            if not rang and now_s < self._due_s and self._is_armed:
                answers = None if self._judges else self._answers(now_s)
                if not answers:
                    return  # it was time for these alone
            was_armed, last = bool(self._armed), self._take_over(now_s, rang)
            if was_armed and last is None and now_s - self._memory.at_s < self._settings.interval_s / 2:
                return  # it is too soon for a sample
            answers = answers or self._answers(now_s)
            sample = self._sample(now_s, answers) if last is None else self._seen_by_kernel(last, answers)
            before = self._memory.episode
            self._memory, ended = guard(self._memory, sample)
            self._follow(before, self._memory.episode)
            self._arm()
        if ended is not None:
            self._tell(ended)

    def let_go(self) -> None:
        """Hold nothing any more, and begin anew."""
        with self._turn:
            self._disarm()
            self._memory = GuardMemory(self._now())
            self._loop.hold(None)
            self._metrics.guard_holding.set(0)
            self.status = self.status.model_copy(update={"holding": False})

    def stop(self) -> None:
        """End, after what is under way."""
        self._stopping.set()
        alarm = self._loop.host.wait_alarm
        if alarm is not None:
            alarm.wake()
        super().stop()
        with self._turn:
            self._disarm()

    def _arm(self) -> None:
        """Have the kernel sample until something is to be decided, where it can."""
        now_s, alarm, bounds = self._now(), self._loop.host.wait_alarm, quiet_bounds(self._memory)
        if alarm is None or bounds is None or bounds.keys() != set(self._names) or now_s < self._alone_until_s:
            return
        look = self._look
        wanted = WaitWatch(
            self._instances,
            tuple(self._before),
            self._memory.at_s,
            tuple(bounds[name] for name in self._names),
            self._settings.interval_s,
            Answered() if look.silences else look.answered,
            look.at_s,
        )
        if alarm.arm(wanted, now_s):
            self._armed, self._sampled = self._watched, self._names

    def _disarm(self) -> LastWaits | None:
        """What the kernel sampled last, None: nothing."""
        alarm = self._loop.host.wait_alarm
        was, self._armed = self._armed, ()
        return alarm.disarm() if alarm is not None and was else None

    def _take_over(self, now_s: float, rang: bool) -> LastWaits | None:
        """What the kernel sampled last. None: nothing since it was armed, or it may have sampled others."""
        if not self._armed:
            return None
        services, is_armed = self._look.answered.services, self._is_armed
        last = self._disarm()
        at_s = self._memory.at_s if last is None else last.at_s
        if is_armed and not rang and now_s - at_s > _LATE_SAMPLES * self._settings.interval_s:
            self._alone_until_s = now_s + _ALONE_S
        if last is not None and len(last.answers) == len(services) and last.answers_s > self._look.at_s:
            answered = replace(self._look.answered, counts=last.answers)
            self._look = self._look.followed(answered, last.answers_s)
        return last

    def _seen_by_kernel(self, last: LastWaits, answers: tuple[LateShare, ...] | None) -> WaitSample:
        waited = dict(zip(last.instances, last.now, strict=True))
        self._before = [waited.get(instance, ()) for instance in self._instances]
        self._memory = after_calm(self._memory, last.from_s)
        waits = _shares(self._sampled, last.before, last.now, last.at_s - last.from_s)
        return self._judged(last.at_s, waits, answers)

    def _sample(self, now_s: float, answers: tuple[LateShare, ...] | None) -> WaitSample:
        waited = self._loop.host.waits(self._instances)
        before, self._before = self._before, waited
        return self._judged(now_s, _shares(self._names, before, waited, now_s - self._memory.at_s), answers)

    def _judged(self, at_s: float, waits: dict[str, float], answers: tuple[LateShare, ...] | None) -> WaitSample:
        """``ways`` are looked for only where somebody waits."""
        unseen = frozenset(self._names).difference(waits) if len(waits) < len(self._names) else frozenset()
        is_late = self._memory.late or any(seen.too_many for seen in answers or ())
        if self._memory.episode is None and not is_late and max(waits.values(), default=0.0) <= LEAST_BOUND:
            return WaitSample(at_s, waits, 0, answers=answers, unseen=unseen)
        ways, episode = self._loop.ways, self._memory.episode
        if episode is None:
            on = self._settings.use is GuardUse.ON
            self._acts = on and any(goal.mode is Mode.ENFORCE for way in ways for goal in way)
        return WaitSample(at_s, waits, len(ways), self._loop.batch_has_floor, self._acts, answers, unseen)

    def _answers(self, now_s: float) -> tuple[LateShare, ...] | None:
        """What was answered, or should have been, since the last look, None: it was only just looked at."""
        if now_s - self._look.at_s < _ANSWERS_EVERY_S:
            return None
        self._look = self._look.followed(self._answered(), now_s)
        return shares(self._look.new, self._memory.watched)

    def _follow(self, before: Episode | None, now: Episode | None) -> None:
        """Write what is to be held now, where that is something else than before."""
        if (before and before.step) == (now and now.step) and (before is None) == (now is None):
            return
        if before is None and now is not None:
            self._held, self._failed = set(), ""
        if now is not None:
            way = self._loop.ways[now.step]
            self._knob = way[0].key.knob
            if not self._acts:
                self._held = {goal.key.uuid for goal in way}
        if self._acts:
            self._note(self._loop.hold(None if now is None else now.step))
        if before is None and now is not None:
            self._reaction_s = self._now() - now.well_s
        self._metrics.guard_holding.set(now is not None and self._acts)
        self.status = self.status.model_copy(update={"holding": now is not None})

    def _note(self, applied: Applied) -> None:
        for outcome in applied.outcomes:
            self._metrics.writes.labels(outcome.key.knob, outcome.kind).inc()
            if outcome.kind in _DONE:
                self._held.add(outcome.key.uuid)
            elif not self._failed:
                self._failed = f"{outcome.key.knob}: {outcome.kind} {outcome.detail}".strip()
        for problem in applied.problems:
            self._metrics.errors.labels(problem.kind).inc()

    def _tell(self, ended: Ended) -> None:
        """One event for an episode, with its length and effect."""
        episode, length_s = ended.episode, ended.at_s - ended.episode.began_s
        self._metrics.guard_episodes.labels(ended.why if self._acts else "observed").inc()
        if self._acts:
            self._metrics.guard_held.inc(length_s)
        way = "idle class" if self._knob is Knob.IDLE else self._knob.spec.label
        many = f"{len(self._held)} batch VM{'s' if len(self._held) != 1 else ''}"
        began = _told(episode.excess) + (f", then {percent(episode.held)}" if episode.held is not None else "")
        if self._acts:
            reaction = f"{1000 * (self._reaction_s or 0.0):.0f} ms after the last calm sample"
            text = f"{began}: {many} held for {length_s:.1f} s ({way}), {reaction}; {_WHY[ended.why]}"
        else:
            text = f"{began}: {many} would have been held ({way}); calm after {length_s:.1f} s"
        text += f"; {self._failed}" if self._failed else ""
        held_s = self.status.held_s + (length_s if self._acts else 0.0)
        update = {"episodes": self.status.episodes + 1, "held_s": held_s, "last": as_text(text)}
        self.status = self.status.model_copy(update=update)
        helped = ended.why is not End.FUTILE and not self._failed
        self._say(Severity.INFO if helped else Severity.WARNING, GUARD, text)

    @property
    def _due_s(self) -> float:
        """When the next sample is to be looked at, as the last one was in time."""
        at_s, interval_s = self._memory.at_s, self._settings.interval_s
        if self._armed:
            return max(self._memory.learnt_s + LEARN_EVERY_S, at_s + interval_s) + interval_s
        doubtful = 0 < self._memory.hot < SAMPLES_IN_A_ROW and self._memory.episode is None
        return at_s + (min(interval_s, _CONFIRM_S) if doubtful else interval_s)

    def _wait(self) -> bool:
        """Until it is time to look; whether the kernel rang."""
        due_s, now_s, alarm = self._due_s, self._now(), self._loop.host.wait_alarm
        if alarm is None or not self._armed:
            self._stopping.wait(max(due_s - now_s, _LEAST_PAUSE_S))
            return False
        if self._look.answered.services and not self._judges:
            due_s = min(due_s, self._look.at_s + max(_ANSWERS_EVERY_S, 2 * self._settings.interval_s))
        return alarm.wait(max(due_s - now_s, _LEAST_PAUSE_S))

    def _run(self) -> None:
        """What is late is not made up for."""
        while True:
            rang = self._wait()
            if self._stopping.is_set():
                return
            try:
                self.look(rang)
            except Exception as error:  # noqa: BLE001 - a mistake must neither end the guard nor keep VMs held
                self._crashed("the guard", error)
                try:
                    self.let_go()
                except Exception as again:  # noqa: BLE001 - the next tick lets go
                    self._crashed("the guard", again)
                self._stopping.wait(_AFTER_MISTAKE_S)
