"""Runs experiments one after the other, keeps each result, and says how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from deploy.reproduction.experiment import Experiment, RunSetting
from deploy.reproduction.result_folder import ResultFolder, StoredResult
from manager.errors import EquipoiseError

FEWEST_S = 3.0
"""Pace is judged once experiments that were to take so long are done."""


class RunState(StrEnum):
    """What became of an experiment in this run."""

    RAN = "ran"
    KEPT = "kept from an earlier run"
    OLDER = "newest result, of other code or settings"
    NOT_QUICK = "not in --quick"
    LACKING = "cannot run on this machine"
    FAILED = "failed"
    LEFT_OUT = "left out of this run"
    PENDING = "not run: interrupted"


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    """An experiment with its result, None: there is none; ``reason``: why not, or why it is an older one."""

    experiment: Experiment
    state: RunState
    result: StoredResult | None
    reason: str = ""


@dataclass(slots=True)
class ReproductionRun:
    """A run over experiments; ``runs`` grows, so that what is done is there when it is interrupted.

    ``chosen``: they were named one by one, so that a quick run leaves none of them out.
    """

    folder: ResultFolder
    setting: RunSetting
    code: str
    say: Callable[[str], None]
    again: bool = False
    chosen: bool = False
    clock: Callable[[], float] = time.monotonic
    runs: dict[str, ExperimentRun] = field(default_factory=dict)

    def play(self, experiments: Sequence[Experiment], left_out: Sequence[Experiment] = ()) -> None:
        """All of them; of those ``left_out`` only what is stored is shown.

        KeyboardInterrupt passes, with everything that is done in ``runs``.
        """
        for experiment in left_out:
            result = self.folder.load(experiment.name)
            if result is not None and result.answers(self.setting, self.code):
                self.runs[experiment.name] = ExperimentRun(experiment, RunState.KEPT, result)
            else:
                self.runs[experiment.name] = _with_older(experiment, RunState.LEFT_OUT, result, "")
        stored = {experiment.name: self.folder.load(experiment.name) for experiment in experiments}
        waiting: list[Experiment] = []
        for experiment in experiments:
            early = self._without_running(experiment, stored[experiment.name])
            if early is None:
                waiting.append(experiment)
                early = _with_older(experiment, RunState.PENDING, stored[experiment.name], "")
            self.runs[experiment.name] = early
        done_s = spent_s = 0.0
        for number, experiment in enumerate(waiting):
            left_s = sum(each.estimate_s(self.setting.quick) for each in waiting[number:])
            pace = spent_s / done_s if done_s >= FEWEST_S else 1.0
            self.say(
                f"[{number + 1}/{len(waiting)}] {experiment.name}: {experiment.figure}, {experiment.kind.value};"
                f" {duration_text(left_s * pace)} left in all"
            )
            before_s = self.clock()
            self.runs[experiment.name] = self._run(experiment, stored[experiment.name])
            spent_s += self.clock() - before_s
            done_s += experiment.estimate_s(self.setting.quick)

    def _without_running(self, experiment: Experiment, stored: StoredResult | None) -> ExperimentRun | None:
        """What is known without running it; None: it is to be run."""
        if stored is not None and not self.again and stored.answers(self.setting, self.code):
            return ExperimentRun(experiment, RunState.KEPT, stored)
        if self.setting.quick and not experiment.quick_s and not self.chosen:
            return _with_older(experiment, RunState.NOT_QUICK, stored, "left out of the quick form")
        if lacks := experiment.lacks():
            return _with_older(experiment, RunState.LACKING, stored, lacks)
        return None

    def _run(self, experiment: Experiment, stored: StoredResult | None) -> ExperimentRun:
        began, before_s = datetime.now(UTC), self.clock()
        try:
            numbers = experiment.run(self.setting)
        except (EquipoiseError, OSError, LookupError, ArithmeticError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            self.say(f"      {experiment.name} failed: {reason}")
            return _with_older(experiment, RunState.FAILED, stored, reason)
        result = StoredResult(
            experiment.name,
            self.setting.quick,
            self.setting.seed,
            self.code,
            began.isoformat(timespec="seconds"),
            self.clock() - before_s,
            numbers,
        )
        self.folder.save(result)
        return ExperimentRun(experiment, RunState.RAN, result)

    @property
    def failed(self) -> Mapping[str, str]:
        """Why, by experiment."""
        return {name: run.reason for name, run in self.runs.items() if run.state is RunState.FAILED}


def _with_older(experiment: Experiment, state: RunState, stored: StoredResult | None, reason: str) -> ExperimentRun:
    if stored is None:
        return ExperimentRun(experiment, state, None, reason)
    if state is RunState.FAILED:
        return ExperimentRun(experiment, state, stored, reason)
    return ExperimentRun(experiment, RunState.OLDER, stored, reason or state.value)


def duration_text(seconds: float) -> str:
    """About how long, for a person."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min"
