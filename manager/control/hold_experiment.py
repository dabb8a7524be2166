"""Which of several suspects slows an application: each is held back in turn, at random, and response times judge.

An experiment goes in blocks. In each, every suspect is held back for one turn, and in one turn nobody is; their order
is drawn anew for each block (randomised complete block design: Fisher, "The Design of Experiments", 1935). A turn ends
with the first sample of response times that lie in it. Never are two held at once.

For a suspect that makes no difference, its turn of a block and the one without anybody held are exchangeable, whatever
the load does meanwhile and however response times are distributed. So the probability that the sum of their differences
is at least as large as seen is the share of the 2^BLOCKS assignments of signs for which it is (Fisher's exact
randomisation test); times the number of suspects (Bonferroni), a harmless one is named with a probability of
``CHANCE`` at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from random import Random
from statistics import fmean

BLOCKS = 8
CHANCE = 0.05
"""An experiment in which nobody slows it names somebody at most so often."""
MOST_SUSPECTS = 4
"""Of so many, and with so many blocks, the smallest probability there is still is below CHANCE / MOST_SUSPECTS."""
LEAST_EFFECT = 0.05
"""A smaller fall of ln(percentile) is not worth holding anybody back."""
LEAST_TURN_S, MOST_TURN_S = 0.3, 15.0
"""A turn lasts so long at least; without a sample for the longer time the experiment ends."""
NOBODY = ""


@dataclass(frozen=True, slots=True)
class HoldExperiment:
    """An experiment under way; times are steady seconds.

    ``order``: whom the turns of this block hold back, NOBODY among them; the current one is the ``turn``-th since
    ``turn_s``. ``blocks``: the samples, ln(percentile), of each whole block by who was held back, ``block`` those of
    this one.
    """

    application: str
    suspects: tuple[str, ...]
    began_s: float
    order: tuple[str, ...]
    turn_s: float
    turn: int = 0
    block: Mapping[str, float] = field(default_factory=dict)
    blocks: tuple[Mapping[str, float], ...] = ()

    @property
    def held(self) -> str:
        """Who is held back now, or NOBODY."""
        return self.order[self.turn]

    @property
    def done(self) -> float:
        """Which part of its turns is over."""
        return (len(self.blocks) * len(self.order) + self.turn) / (BLOCKS * len(self.order))


@dataclass(frozen=True, slots=True)
class HoldFinding:
    """What an experiment came to. ``neighbour``: who slows the application, or NOBODY.

    While that one is held back ln(percentile) is lower by ``fall``; ``confidence``: 1 minus the probability that a
    harmless one is named by as much.
    """

    application: str
    neighbour: str
    fall: float
    confidence: float
    at_s: float


def most_s(suspects: int) -> float:
    """How long an experiment with so many suspects may take in all, in seconds; they are held back for less."""
    return BLOCKS * (suspects + 1) * MOST_TURN_S


def begun(application: str, suspects: Sequence[str], now_s: float) -> HoldExperiment:
    """An experiment that begins now. Raises ValueError with no suspects or more than MOST_SUSPECTS."""
    if not 1 <= len(suspects) <= MOST_SUSPECTS:
        raise ValueError(f"{len(suspects)} suspects are refused: use 1 to {MOST_SUSPECTS}")
    order = _drawn(application, suspects, now_s, 0)
    return HoldExperiment(application, tuple(suspects), now_s, order, now_s)


def next_turn(experiment: HoldExperiment, now_s: float, sample: float | None) -> HoldExperiment | HoldFinding | None:
    """The experiment as of now, what it came to, or None where it cannot go on, for too few response times.

    ``sample``: ln(percentile) of the response times since ``turn_s``; None: too few yet.
    """
    if sample is None or now_s - experiment.turn_s < LEAST_TURN_S:
        return experiment if now_s - experiment.turn_s < MOST_TURN_S else None
    block = {**experiment.block, experiment.held: sample}
    turn = experiment.turn + 1
    if turn < len(experiment.order):
        return replace(experiment, turn=turn, turn_s=now_s, block=block)
    blocks = (*experiment.blocks, block)
    if len(blocks) == BLOCKS:
        return _found(experiment, blocks, now_s)
    order = _drawn(experiment.application, experiment.suspects, experiment.began_s, len(blocks))
    return replace(experiment, order=order, turn=0, turn_s=now_s, block={}, blocks=blocks)


def chance_of(differences: Sequence[float]) -> float:
    """The probability that differences without a cause sum up to as much: the exact randomisation test."""
    seen = sum(differences)
    signs = product((1, -1), repeat=len(differences))
    sums = [sum(sign * each for sign, each in zip(each_signs, differences, strict=True)) for each_signs in signs]
    return sum(other >= seen - 1e-9 for other in sums) / len(sums)


def _found(experiment: HoldExperiment, blocks: Sequence[Mapping[str, float]], now_s: float) -> HoldFinding:
    """Who slows it: of those shown to, the one whose turns were fastest."""
    falls: dict[str, tuple[float, float]] = {}
    for suspect in experiment.suspects:
        differences = [block[NOBODY] - block[suspect] for block in blocks]
        chance = min(len(experiment.suspects) * chance_of(differences), 1.0)
        falls[suspect] = fmean(differences), chance
    shown = {name: fall for name, (fall, chance) in falls.items() if chance <= CHANCE and fall >= LEAST_EFFECT}
    neighbour = max(shown, key=lambda name: (shown[name], name), default=NOBODY)
    fall, chance = falls[neighbour] if neighbour else (0.0, 1.0)
    return HoldFinding(experiment.application, neighbour, fall, 1 - chance, now_s)


def _drawn(application: str, suspects: Sequence[str], began_s: float, block: int) -> tuple[str, ...]:
    """The order of a block: random, and the same each time it is drawn."""
    order = [NOBODY, *suspects]
    Random(f"{application}/{began_s}/{block}").shuffle(order)  # noqa: S311 - nothing secret
    return tuple(order)
