"""What `auto` says of its experiments: what is under way, what was shown, and what is next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from manager.control.hold_experiment import NOBODY, HoldExperiment, HoldFinding
from manager.model.decision import ShownCause
from manager.model.numbers import duration
from manager.model.units import percent
from policies.auto_experiment import Experiments


def told_experiments(
    experiments: Experiments, application: str, percentile: str, now_s: float, *, acts: bool
) -> Iterator[str]:
    """Sentences for an application whose SLA is about ``percentile``, as p95. ``acts``: what is decided is written."""
    running, finding = experiments.running, experiments.findings.get(application)
    if running is not None and running.application == application:
        yield _running(running)
    if finding is not None:
        yield _finding(finding, percentile, now_s)
    suspects = experiments.upcoming.get(application)
    if suspects:
        upcoming = (
            "If that stays so, an experiment comes next" if acts else "In mode enforce, an experiment would follow"
        )
        yield f"{upcoming}: {_by_turns(suspects)}, which shows who slows {application}."


def shown_cause(experiments: Experiments, application: str, now_s: float) -> ShownCause | None:
    """Who was shown to slow an application, for those who tell its likely cause."""
    finding = experiments.shown.get(application)
    if finding is None:
        return None
    return ShownCause(finding.neighbour, finding.fall, finding.confidence, max(now_s - finding.at_s, 0.0))


def _running(running: HoldExperiment) -> str:
    now = "nobody is" if running.held == NOBODY else f"{running.held} is"
    done = percent(running.done)
    return (
        f"An experiment shows who slows it: {_by_turns(running.suspects)}; now {now}, and {done} of the turns are over."
    )


def _finding(finding: HoldFinding, percentile: str, now_s: float) -> str:
    ago = duration(round(max(now_s - finding.at_s, 1.0)))
    if finding.neighbour == NOBODY:
        return f"An experiment {ago} ago did not show that any batch VM slows it."
    fall, confidence = percent(1 - math.exp(-finding.fall)), percent(finding.confidence, 1)
    return (
        f"Shown by experiment {ago} ago: batch VM {finding.neighbour} slows it; {percentile} fell by {fall} while that"
        f" was held back (confidence {confidence})."
    )


def _by_turns(suspects: Sequence[str]) -> str:
    names = f"{', '.join(suspects[:-1])} and {suspects[-1]}"
    return f"batch VMs {names} are held back by turns, one at a time, in random order"
