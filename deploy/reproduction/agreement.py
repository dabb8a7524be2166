"""Does what came out here agree with what a study claims? Judged by bars that are part of the claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from deploy.reproduction.experiment import PaperClaim

UNEXPLAINED = "Not explained."


class Agreement(StrEnum):
    """Of a figure or table as a whole."""

    AGREES = "agrees"
    IN_PART = "agrees in part"
    DEVIATES = "deviates"


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """A claim beside ours; ``ours`` None: the run has no such value. ``explanation``: of a deviation."""

    claim: PaperClaim
    ours: float | None
    agrees: bool
    explanation: str


def judge_claims(claims: Sequence[PaperClaim], values: Mapping[str, float]) -> tuple[ClaimOutcome, ...]:
    """Each claim with our value."""
    return tuple(_outcome(claim, values.get(claim.value)) for claim in claims)


def _outcome(claim: PaperClaim, ours: float | None) -> ClaimOutcome:
    if ours is None or math.isnan(ours):
        return ClaimOutcome(
            claim, None, False, "The run gave no such value; its remarks say why, or there were too few response times."
        )
    if ours < claim.least:
        return ClaimOutcome(claim, ours, False, claim.below or UNEXPLAINED)
    if ours > claim.most:
        return ClaimOutcome(claim, ours, False, claim.above or UNEXPLAINED)
    return ClaimOutcome(claim, ours, True, "")


def summarise_claims(outcomes: Sequence[ClaimOutcome]) -> Agreement:
    """All claims agree, some, or none."""
    agreeing = sum(outcome.agrees for outcome in outcomes)
    if agreeing == len(outcomes):
        return Agreement.AGREES
    return Agreement.IN_PART if agreeing else Agreement.DEVIATES


def bar_text(claim: PaperClaim) -> str:
    """The bar in words."""
    if math.isinf(claim.least):
        return f"at most {claim.most:g}"
    if math.isinf(claim.most):
        return f"at least {claim.least:g}"
    return f"{claim.least:g} to {claim.most:g}"
