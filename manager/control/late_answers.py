"""Whether an application answers more of its requests late than its SLA allows, soon after that began.

A percentile of a tenth of a second is noise: with 5 % of answers allowed to be late, one of three requests may be. So
what is above twice the allowed share adds up, and what is below is taken off again, never below nothing: Page's
cumulative sum (Biometrika 41, 1954). It reaches ``ENOUGH`` within some hundred milliseconds where hundreds of req/s are
late, and within seconds where a few are. Where as many are late as the SLA allows, each by its own chance,
it does so in about six of 100 million rises from nothing (Wald's bound, exp(-1.38 ENOUGH) for 5 %).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from manager.model.traffic import Answered, JudgedService

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


def since(before: Answered, now: Answered, watched: Collection[str] = ()) -> tuple[LateShare, ...]:
    """What applications answered between two looks: those that answered anything late, and those ``watched``.

    Of services that were looked at both times: of another one all that it ever answered would count.
    """
    if before.services == now.services:
        counted = list(zip(now.services, now.counts, before.counts, strict=True))
    else:
        earlier = dict(zip(before.services, before.counts, strict=True))
        known = zip(now.services, now.counts, strict=True)
        counted = [(service, counts, earlier[service]) for service, counts in known if service in earlier]
    names = {service.application for service, (_, late), (_, late_then) in counted if late > late_then}.union(watched)
    return tuple(share for name in sorted(names) if (share := _share(name, counted)))


def _share(name: str, counted: Iterable[tuple[JudgedService, tuple[int, int], tuple[int, int]]]) -> LateShare | None:
    """Of one application; None where it answered nothing, or its services are counted anew."""
    answers = late = 0
    allowed = 0.0
    for service, (answers_now, late_now), (answers_then, late_then) in counted:
        if service.application == name and answers_now > answers_then:
            answers += answers_now - answers_then
            late += max(late_now - late_then, 0)
            allowed = service.allowed
    return LateShare(name, answers, min(late / answers, 1.0), allowed) if answers else None


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
