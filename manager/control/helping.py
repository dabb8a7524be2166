"""Whom more weight saves, and whether it did: weight is taken from who meets an SLA only where that saves another.

Predicted first, from a conservation law: on pCPUs that are never idle while somebody wants them, whatever the weights,
the sum over applications of the pCPUs they want times their response times stays about the same (Kleinrock, "A
conservation law for a wide class of queueing disciplines", Naval Research Logistics Quarterly 12, 1965; exact for means
on one pCPU). What one application is to gain in it, others have to give. Judged afterwards, because that is no more
than an estimate: who was helped in vain is not helped again for a while, and each time for longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from manager.model.law import Law

STAYS = 0.7
"""Who cannot be helped stays so until its need is below this part of the room: else chance would decide."""
LEAST_GAIN = 0.05
"""ln(RT / RT_SLA) must fall by this while others pay, or help was in vain."""
BY_FAR = 2.0
"""Of two that got into need at once, the one whose need is so many times the other's gives way."""
MOST_DOUBLINGS = 4
"""The cool-down doubles so many times at most."""


@dataclass(frozen=True, slots=True)
class Standing:
    """An application with believable response times: ``miss`` is its averaged ln(RT / RT_SLA), above 0 violated.

    ``pcpus`` is what its VMs want, ``weight`` the largest that one of them has now.
    """

    miss: float
    pcpus: float
    sla_ms: float
    weight: int

    def excess(self, margin: float) -> float:
        """What it is above its SLA less a margin, in pCPUs times milliseconds; negative: what it can give."""
        return self.pcpus * self.sla_ms * (math.exp(self.miss) - 1 + margin)


@dataclass(frozen=True, slots=True)
class Help:
    """What is remembered of helping an application.

    ``donors`` were at ease before it got into need. It is judged from when it was at ``miss``, ``intervals`` ago. It
    was in vain ``failures`` times, and is not tried again until ``until_s`` (steady seconds). ``hopeless``: it is not
    to be helped. ``protected``: it is, at the cost of another.
    """

    intervals: int = 0
    miss: float = 0.0
    donors: frozenset[str] = frozenset()
    failures: int = 0
    until_s: float = 0.0
    hopeless: bool = False
    protected: bool = False


NO_HELP = Help()


def judge(standings: Mapping[str, Standing], before: Mapping[str, Help], law: Law, steady_s: float) -> dict[str, Help]:
    """What is to be remembered of helping each application that stands; who is not to be helped is ``hopeless``.

    Who was at ease when another got into need, and is in need itself now, is ``protected``: helped at the cost of that
    other, whose need is no longer met either way; of two that got into need at once, that is who needs far less.
    """
    excess = {name: standing.excess(law.help_margin) for name, standing in standings.items()}
    spared = frozenset(name for name in standings if not before.get(name, NO_HELP).intervals)
    judged = {
        name: _tried(name, standing, before.get(name, NO_HELP), standings, spared, law, steady_s)
        if excess[name] > 0
        else _at_ease(before.get(name, NO_HELP), law, steady_s)
        for name, standing in standings.items()
    }
    lost = beyond_help(excess, before, law.help_trust) | {
        name for name, tried in judged.items() if steady_s < tried.until_s
    }
    protected = {
        name
        for name in lost
        for other in lost
        if name in judged[other].donors and (other not in judged[name].donors or excess[name] * BY_FAR < excess[other])
    }
    return {name: _helped(tried, name in lost - protected, name in protected) for name, tried in judged.items()}


def _helped(tried: Help, hopeless: bool, protected: bool) -> Help:
    """Mostly as it was: there are many of them in each tick."""
    if tried.hopeless is hopeless and tried.protected is protected:
        return tried
    return replace(tried, hopeless=hopeless, protected=protected)


def beyond_help(excess: Mapping[str, float], before: Mapping[str, Help], trust: float) -> frozenset[str]:
    """Those in need whom the room of the others does not save, by prediction: the cheapest to save come first.

    ``excess`` is by application, see ``Standing.excess``. ``trust``: room counts as so many times what was measured.
    """
    room = trust * -math.fsum(above for above in excess.values() if above < 0)
    lost: set[str] = set()
    for above, name in sorted((above, name) for name, above in excess.items() if above > 0):
        if above > room * (STAYS if before.get(name, NO_HELP).hopeless else 1.0):
            lost.add(name)
        else:
            room -= above
    return frozenset(lost)


def _at_ease(earlier: Help, law: Law, steady_s: float) -> Help:
    """Of one that needs no help. Failures are forgotten when as long again as the cool-down has passed after it."""
    over = earlier.failures and steady_s >= earlier.until_s + _cool_down_s(earlier.failures, law)
    if not over and not earlier.intervals and not earlier.donors:
        return earlier
    return replace(earlier, intervals=0, donors=frozenset(), failures=0 if over else earlier.failures)


def _tried(
    name: str,
    standing: Standing,
    earlier: Help,
    standings: Mapping[str, Standing],
    spared: frozenset[str],
    law: Law,
    steady_s: float,
) -> Help:
    """Begin or go on with helping one application in need; if it was in vain: not again until the cool-down is over."""
    if not earlier.intervals:
        return replace(earlier, intervals=1, miss=standing.miss, donors=spared - {name})
    if earlier.hopeless:
        return replace(earlier, intervals=1, miss=standing.miss)
    if earlier.intervals < law.help_intervals:
        return replace(earlier, intervals=earlier.intervals + 1)
    paying = any(
        donor in standings and standings[donor].miss > 0 and standings[donor].weight < standing.weight
        for donor in earlier.donors
    )
    if not paying or standing.miss <= 0 or standing.miss < earlier.miss - LEAST_GAIN:
        return replace(earlier, intervals=1, miss=standing.miss)
    failures = earlier.failures + 1
    return replace(earlier, intervals=1, failures=failures, until_s=steady_s + _cool_down_s(failures, law))


def _cool_down_s(failures: int, law: Law) -> float:
    """How long not to try again after so many failures, at least one."""
    return law.help_cool_down_s * 2.0 ** min(failures - 1, MOST_DOUBLINGS)
