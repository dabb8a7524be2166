"""What an experiment is: a figure or table of a study, the claims made of it, and how it is run here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

Choice = TypeVar("Choice")


class ExperimentKind(StrEnum):
    """Where the numbers come from."""

    VMS = "real VMs"
    KERNEL = "booted kernel"
    MACHINE = "this machine"
    SIMULATED = "simulated"
    ARITHMETIC = "arithmetic"


KIND_MEANS: Mapping[ExperimentKind, str] = {
    ExperimentKind.VMS: "VMs under libvirt, with services and load in them",
    ExperimentKind.KERNEL: "a real kernel in an emulated machine, with Equipoise's scheduler",
    ExperimentKind.MACHINE: "this machine's kernel and programs, without VMs",
    ExperimentKind.SIMULATED: "the simulator, with the control loop and the policies of the product",
    ExperimentKind.ARITHMETIC: "the product's formulas on numbers of the study",
}


class Study(StrEnum):
    """The studies."""

    WEIGHTS = "Blagodurov et al., weight-based collocation (IM 2013)"
    DRAFT = "Leverich and Kozyrakis, draft (2012)"
    RECONCILING = "Leverich and Kozyrakis, sub-millisecond QoS (EuroSys 2014)"
    SERVICES = "Chen et al., big and small servers (IISWC 2017)"
    CALADAN = "Fried et al., Caladan, slides (OSDI 2020)"


@dataclass(frozen=True, slots=True)
class RunSetting:
    """How an experiment is to be run: coarser with ``quick``; ``seed`` of all that is random."""

    quick: bool = False
    seed: int = 1

    def choose(self, quick: Choice, full: Choice) -> Choice:
        """One of the two."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line of a figure: points of x and y."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class FigureNumbers:
    """What a run came to: the figure's lines, the values that claims are judged by, and remarks on the run."""

    lines: tuple[PlotLine, ...]
    values: Mapping[str, float]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """A number that a study states, or what follows from one, and the bar for ours: from ``least`` to ``most``.

    ``value`` names ours among those of the run. ``theirs`` None: the study says it in words. ``where``: in the study.
    ``below`` and ``above`` explain a value of ours on that side of the bar.
    """

    text: str
    value: str
    theirs: float | None
    where: str
    least: float = -math.inf
    most: float = math.inf
    unit: str = ""
    below: str = ""
    above: str = ""


@dataclass(frozen=True, slots=True)
class PlotAxes:
    """The names of a figure's axes, with units; ``logarithmic``: that of y."""

    x: str
    y: str
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure or table. ``theirs`` are its lines as far as the study's text has their numbers.

    ``setup``: how ours differs from theirs. ``quick_s`` and ``full_s``: about how long it takes on two cores; quick_s
    0: the quick form leaves it out unless it is named. ``lacks`` says what this machine lacks for it; empty: nothing.
    """

    name: str
    study: Study
    figure: str
    claim: str
    kind: ExperimentKind
    setup: str
    run: Callable[[RunSetting], FigureNumbers]
    axes: PlotAxes
    theirs: tuple[PlotLine, ...]
    claims: tuple[PaperClaim, ...]
    quick_s: float
    full_s: float
    lacks: Callable[[], str] = field(default=lambda: "")

    def estimate_s(self, quick: bool) -> float:
        """About how long it takes, in seconds."""
        return self.quick_s or self.full_s if quick else self.full_s


def line(name: str, *points: tuple[float, float]) -> PlotLine:
    """A line of these points."""
    return PlotLine(name, points)
