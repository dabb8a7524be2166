"""Whether an application answers more of its requests late than its SLA allows, soon after that began.

A percentile of a tenth of a second is noise: with 5 % of answers allowed to be late, one of three requests may be. So
what is above twice the allowed share adds up, and what is below is taken off again, never below nothing: Page's
cumulative sum (Biometrika 41, 1954). It reaches ``ENOUGH`` within some hundred milliseconds where hundreds of req/s are
late, and within seconds where a few are. Where as many are late as the SLA allows, each by its own chance,
it does so in about six of 100 million rises from nothing (Wald's bound, exp(-1.38 ENOUGH) for 5 %).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from manager.model.traffic import AnswerCount, Answered, JudgedService

MULTIPLE = 2.0
"""Late answers above so many times the allowed share are too many."""
ENOUGH = 12.0
"""So many late answers too many are no chance."""


@dataclass(frozen=True, slots=True)
class LateShare:
    """An application's ``share`` of ``answers`` that were late, where ``allowed`` may be."""

    application: str
    answers: int
    share: float
    allowed: float

    @property
    def too_many(self) -> bool:
        """Whether more were late than can be tolerated for long."""
        return self.share > MULTIPLE * self.allowed


@dataclass(frozen=True, slots=True)
class Silence:
    """A service that was asked ``asked`` times and has answered nothing since; at ``marked_s`` it was ``marked`` times.

    ``told`` requests that wait were counted as late before: when they are answered they are not counted again.
    ``marked_s`` None: it answers again.
    """

    asked: int
    marked: int
    marked_s: float | None
    told: int = 0


@dataclass(frozen=True, slots=True)
class SeenAnswers:
    """What services had answered at ``at_s`` (monotonic), which of them are silent, and what is new.

    ``new``: answers since the look before, and the late ones of them, by service; where there are any.
    """

    at_s: float = 0.0
    answered: Answered = field(default_factory=Answered)
    silences: Mapping[JudgedService, Silence] = field(default_factory=dict)
    new: Mapping[JudgedService, tuple[int, int]] = field(default_factory=dict)

    def followed(self, answered: Answered, at_s: float) -> SeenAnswers:
        """The next look. A service that was not looked at before has answered nothing new, whatever it ever answered.

        A request that waits longer than the SLA allows is late, however long it will wait: of a service that answers
        nothing at all each request is known to wait. Of one that answers others it is late when it is answered.
        """
        silences: dict[JudgedService, Silence] = {}
        new: dict[JudgedService, tuple[int, int]] = {}
        for service, now, then in _looked_at_twice(self.answered, answered):
            silence = self.silences.get(service)
            if now == then and silence is None:
                continue
            answers, late = max(now.answers - then.answers, 0), max(now.late - then.late, 0)
            overdue = 0
            if now.ended > then.ended:
                silence, late_before = _ended(silence, now, then, late)
                answers, late = answers - late_before, late - late_before
            else:
                silence, overdue = _gone_on(silence, now, then, service.late_s, at_s)
            if silence is not None:
                silences[service] = silence
            if answers + overdue > 0:
                new[service] = answers + overdue, late + overdue
        return SeenAnswers(at_s, answered, silences, new)


def _looked_at_twice(before: Answered, now: Answered) -> Iterator[tuple[JudgedService, AnswerCount, AnswerCount]]:
    """Each such service, with what was counted now and before."""
    if before.services == now.services:
        return zip(now.services, now.counts, before.counts, strict=True)
    earlier = dict(zip(before.services, before.counts, strict=True))
    counted = zip(now.services, now.counts, strict=True)
    return ((service, count, earlier[service]) for service, count in counted if service in earlier)


def _ended(silence: Silence | None, now: AnswerCount, then: AnswerCount, late: int) -> tuple[Silence | None, int]:
    """Of a service that answers: what is left of its silence, and how many of its late answers were counted before."""
    if silence is None:
        return None, 0
    left = silence.told - (now.ended - then.ended)
    return Silence(now.asked, now.asked, None, left) if left > 0 else None, min(silence.told, late)


def _gone_on(
    silence: Silence | None, now: AnswerCount, then: AnswerCount, late_s: float, at_s: float
) -> tuple[Silence | None, int]:
    """Of a service that answers nothing: its silence, and how many of its requests are late now that were not before.

    Only of those that came since it answered: of others some may wait for ever, as their connections were forgotten.
    """
    if silence is None or silence.marked_s is None:
        told = silence.told if silence else 0
        if now.asked > then.asked:
            return Silence(then.asked, now.asked, at_s, told), 0
        return silence, 0
    if at_s - silence.marked_s < late_s:
        return silence, 0
    overdue = max(silence.marked - silence.asked, 0)
    return Silence(silence.marked, now.asked, at_s, silence.told + overdue), overdue


def shares(new: Mapping[JudgedService, tuple[int, int]], watched: Collection[str] = ()) -> tuple[LateShare, ...]:
    """By application what is new of its services: of those that answered anything late, and of those ``watched``."""
    names = {service.application for service, (_, late) in new.items() if late}.union(watched)
    return tuple(share for name in sorted(names) if (share := _share(name, new)))


def _share(name: str, new: Mapping[JudgedService, tuple[int, int]]) -> LateShare | None:
    """Of one application; None where nothing is new."""
    counted = [(service.allowed, *count) for service, count in new.items() if service.application == name]
    answers, late = sum(answers for _, answers, _ in counted), sum(late for _, _, late in counted)
    return LateShare(name, answers, min(late / answers, 1.0), counted[0][0]) if answers else None


def added_up(
    before: Mapping[str, float], shares: tuple[LateShare, ...]
) -> tuple[Mapping[str, float], LateShare | None]:
    """The sums by application after a look, and who is certain to answer too many late: the worst of them."""
    sums = dict(before)
    for seen in shares:
        excess = (seen.share - MULTIPLE * seen.allowed) * seen.answers
        sums[seen.application] = min(max(sums.get(seen.application, 0.0) + excess, 0.0), ENOUGH)
    certain = [seen for seen in shares if sums[seen.application] >= ENOUGH]
    return {name: total for name, total in sums.items() if total}, worst_of(certain)


def worst_of(shares: Iterable[LateShare]) -> LateShare | None:
    """Who answers too many late, and most of them."""
    return max(
        (seen for seen in shares if seen.too_many),
        key=lambda seen: (seen.share - seen.allowed, seen.application),
        default=None,
    )
