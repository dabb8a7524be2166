"""Whether a step helped or harmed: a sequential test on ln(percentile / target), valid whenever it is looked at.

Samples before a step and under it are compared by a Bayes factor: of their difference being normal with the standard
deviation PRIOR_EFFECT, over there being none. Where there is none it is a martingale that begins at 1 (the test is
invariant to the common mean: Lai, "On confidence sequences", 1976), so that it ever reaches 1 / a with a probability of
a at most (Ville, 1939), however often one looks. It needs samples that are independent, normal, and of a known spread;
the spread is estimated, with the usual one as a prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from policies.auto_model import SPREAD

PRIOR_EFFECT = 0.5
"""Effects of steps are about so large, in logarithms: a factor of 1.6."""
CHANCE = 0.05
"""A step without any effect passes for one that helps at most so often."""
HARM_CHANCE = 0.1
"""And for one that harms a given application so often: here a mistake costs a trial only."""
PRIOR_SAMPLES = 2
"""For so many samples the usual spread counts."""
LEAST_SPREAD = 0.05
FUTILE = 5.0
FEWEST = 3
"""Of fewer samples on either side nothing is concluded."""
CHANGED = 100.0
"""The newest samples are of another state than those before where that is so many times as likely as one state."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Samples under a step against those before: ``change`` is the mean difference, below 0 where it is better.

    ``log_factor`` is the logarithm of the Bayes factor.
    """

    change: float
    log_factor: float

    @property
    def helped(self) -> bool:
        """Whether it is better by more than chance."""
        return self.change < 0 and self.log_factor >= -math.log(2 * CHANCE)

    @property
    def futile(self) -> bool:
        """Whether no effect is FUTILE times as likely as one of the usual size."""
        return self.log_factor <= -math.log(FUTILE)

    @property
    def promising(self) -> bool:
        """Whether it is better, and that is likelier an effect than chance."""
        return self.change < 0 < self.log_factor

    @property
    def harmed(self) -> bool:
        """Whether it is worse by more than chance."""
        return self.change > 0 and self.log_factor >= -math.log(2 * HARM_CHANCE)


def compare(before: Sequence[float], under: Sequence[float]) -> Compared | None:
    """None with too few samples. Half of all mistakes are on either side, so that 2 CHANCE is for both."""
    if min(len(before), len(under)) < FEWEST:
        return None
    means = fmean(before), fmean(under)
    squares = sum((value - means[0]) ** 2 for value in before) + sum((value - means[1]) ** 2 for value in under)
    known = len(before) + len(under) - 2
    spread2 = max((PRIOR_SAMPLES * SPREAD**2 + squares) / (PRIOR_SAMPLES + known), LEAST_SPREAD**2)
    chance2 = spread2 * (1 / len(before) + 1 / len(under))
    change, effect2 = means[1] - means[0], PRIOR_EFFECT**2
    both2 = chance2 + effect2
    return Compared(change, (math.log(chance2 / both2) + change**2 * effect2 / (chance2 * both2)) / 2)


def since_last_change(samples: Sequence[float]) -> tuple[float, ...]:
    """The newest FEWEST, or twice as many, if they are clearly of another state than all before; else all.

    To be called with each new sample: what was before a change says nothing of now.
    """
    for count in (FEWEST, 2 * FEWEST):
        compared = compare(samples[:-count], samples[-count:])
        if compared is not None and compared.log_factor >= math.log(CHANGED):
            return tuple(samples[-count:])
    return tuple(samples)
