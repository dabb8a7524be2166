"""What the twin of a host and interference tables say of a VM that may come, put together: the more careful counts."""

from __future__ import annotations

from dataclasses import dataclass

from manager.model.verdict import FitVerdict

_CAUTION = (FitVerdict.YES, FitVerdict.UNSURE, FitVerdict.NO)


@dataclass(frozen=True, slots=True)
class Opinion:
    """A verdict with its reasons, and what it is of, such as ``the twin``."""

    source: str
    verdict: FitVerdict
    reasons: tuple[str, ...]


def most_careful(*verdicts: FitVerdict) -> FitVerdict:
    """No before unsure, and unsure before yes. Raises ValueError without verdicts."""
    return max(verdicts, key=_CAUTION.index)


def combined(first: Opinion, second: Opinion) -> Opinion:
    """The more careful of two, with what the other says where they disagree; the reasons of both where they agree."""
    if first.verdict is second.verdict:
        return Opinion(first.source, first.verdict, (*first.reasons, *second.reasons))
    careful, other = sorted((first, second), key=lambda opinion: -_CAUTION.index(opinion.verdict))
    heard = (f"{other.source}, less careful: {other.verdict}: {reason}" for reason in other.reasons)
    return Opinion(careful.source, careful.verdict, (*careful.reasons, *heard))
