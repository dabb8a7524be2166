"""What a driven load profile has measured so far, in memory and in its state file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from manager.cli.sweep import needed
from manager.control.load_curve import LoadStep
from manager.control.load_search import LoadPoint, LoadVerdict, NextLoad, OwnDelay, SearchResult, judged, next_load
from manager.errors import SettingsError
from manager.load.result import GENERATED, IntervalResult, LoadResult
from manager.model.histogram import Histogram
from manager.private import replace_file

_FORMAT = "equipoise load profile 1"
PEAK = "peak"


@dataclass(frozen=True, slots=True)
class DrivenLoad:
    """One load and what came of it. ``offered_rps`` None: the peak, measured in a closed loop.

    ``percentile_ms`` is that of the SLA. ``why`` says what was in the way of the load. Times are in seconds since the
    epoch. ``batch_share``: of the host's CPU time, None if not known. ``steps``: rate in requests per second and the
    percentile in ms of each second, or of some where one has too few response times.
    """

    purpose: str
    offered_rps: float | None
    verdict: LoadVerdict
    rate_rps: float
    percentile_ms: float | None
    p50_ms: float | None
    p99_ms: float | None
    sent: int
    errors: Mapping[str, int]
    why: str
    since_s: float
    until_s: float
    batch_share: float | None = None
    steps: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class DrivenPass:
    """The loads that were tried while batch VMs ran as they did (``as_is``) or were held (``held``)."""

    batch: str
    loads: tuple[DrivenLoad, ...] = ()

    @property
    def peak(self) -> DrivenLoad | None:
        """The most that it served, None while that is not measured."""
        return next((load for load in self.loads if load.purpose == PEAK), None)

    @property
    def tried(self) -> list[DrivenLoad]:
        """All but the peak, by rate."""
        return sorted((load for load in self.loads if load.purpose != PEAK), key=lambda load: load.offered_rps or 0.0)


@dataclass(frozen=True, slots=True)
class DriveRecord:
    """All passes in their order, with what they were measured with."""

    settings: Mapping[str, Any]
    passes: tuple[DrivenPass, ...] = field(default_factory=tuple)

    @property
    def base_rps(self) -> float | None:
        """What the sweeps of all passes go up to: the peak of the first one. None while it is not measured."""
        peak = self.passes[0].peak if self.passes else None
        return peak.rate_rps if peak else None

    def next_step(self, batch: str) -> NextLoad | SearchResult | None:
        """What comes next in a pass; None: its peak."""
        found = next(one for one in self.passes if one.batch == batch)
        base_rps = self.base_rps
        if found.peak is None or base_rps is None:
            return None
        points = [LoadPoint(load.offered_rps or 0.0, load.verdict) for load in found.tried]
        return next_load(base_rps, points, self.settings["sla_ms"] is not None)

    def having(self, batch: str, load: DrivenLoad) -> DriveRecord:
        """With one more load in a pass."""
        passes = tuple(replace(one, loads=(*one.loads, load)) if one.batch == batch else one for one in self.passes)
        return replace(self, passes=passes)

    def steps(self) -> list[LoadStep]:
        """Everything that was measured in open loops and is about the server, for the curves."""
        return [
            LoadStep(rate_rps, percentile_ms, load.batch_share)
            for one in self.passes
            for load in one.tried
            if load.verdict is not LoadVerdict.LIMITED
            for rate_rps, percentile_ms in load.steps
        ]


def driven_load(result: LoadResult, step: NextLoad | None, percentile: float, sla_ms: float | None) -> DrivenLoad:
    """What a run says of a load; ``step`` None: of the peak."""
    histogram = result.histogram
    answered = result.answered >= GENERATED * result.sent
    failed = "" if answered else f"{result.sent - result.answered:,} of {result.sent:,} requests had no good answer"
    why = result.shortfall or failed or "; ".join(result.client_limits)
    first, last = result.intervals[0], result.intervals[-1]
    percentile_ms = _ms(histogram, percentile) if histogram.count >= needed(percentile) else None
    late_ms = (_ms(result.lateness, 99) or 0.0) if result.client_limits else 0.0
    verdict = judged(percentile_ms, sla_ms, bool(result.shortfall or failed), OwnDelay(result.busy, late_ms))
    if step is None and verdict is not LoadVerdict.LIMITED:
        verdict = LoadVerdict.UNJUDGED  # response times of a closed loop say little of an SLA
    return DrivenLoad(
        PEAK if step is None else step.purpose,
        None if step is None else step.rate_rps,
        verdict,
        result.rate_rps,
        percentile_ms,
        _ms(histogram, 50),
        _ms(histogram, 99),
        result.sent,
        dict(result.errors),
        why,
        first.end_epoch_s - (first.end_s - first.start_s),
        last.end_epoch_s,
        steps=tuple(_steps(result.intervals, percentile)),
    )


def _steps(intervals: Sequence[IntervalResult], percentile: float) -> Iterator[tuple[float, float]]:
    """Rate and percentile of consecutive intervals that have enough response times together.

    As in history, where nothing was answered there is no rate: time-outs of a server that hangs are not those at 0.
    """
    part: list[IntervalResult] = []
    for interval in intervals:
        part.append(interval)
        histogram = Histogram().merge(*(one.histogram for one in part))
        percentile_ms = _ms(histogram, percentile)
        if percentile_ms is not None and histogram.count >= needed(percentile):
            if answered := sum(one.answered for one in part):
                yield answered / (part[-1].end_s - part[0].start_s), percentile_ms
            part = []


def _ms(histogram: Histogram, percentile: float) -> float | None:
    value_us = histogram.percentile_us(percentile)
    return None if value_us is None else value_us / 1000


def write_record(file: Path, record: DriveRecord) -> None:
    """Replace the state file. Raises SettingsError."""
    text = json.dumps({"format": _FORMAT, **asdict(record)}, indent=1)
    try:
        replace_file(file, text.encode())
    except OSError as error:
        raise SettingsError(f"--state {file} cannot be written: {error.strerror}") from error


def read_record(file: Path, fresh: DriveRecord) -> DriveRecord:
    """What a state file holds; where there is none, ``fresh``, a profile with the same settings and nothing measured.

    Raises SettingsError for a file of something else, or of a profile with other settings.
    """
    try:
        body = json.loads(file.read_text())
        if body["format"] != _FORMAT:
            raise ValueError
        passes = tuple(DrivenPass(one["batch"], tuple(map(_load, one["loads"]))) for one in body["passes"])
        before = dict(body["settings"])
    except FileNotFoundError:
        return fresh
    except OSError as error:
        raise SettingsError(f"--state {file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise SettingsError(f"--state {file} is no state of a load profile: name another file") from error
    wanted = json.loads(json.dumps(fresh.settings))
    for name in sorted(before.keys() | wanted.keys()):
        if before.get(name) != wanted.get(name):
            raise SettingsError(
                f"--state {file} is of a profile with {name} = {before.get(name)!r}, not {wanted.get(name)!r}: use the"
                " same options, or name another file"
            )
    return replace(fresh, passes=passes)


def _load(body: Mapping[str, Any]) -> DrivenLoad:
    steps = tuple((float(rate_rps), float(percentile_ms)) for rate_rps, percentile_ms in body["steps"])
    return DrivenLoad(**{**body, "verdict": LoadVerdict(body["verdict"]), "steps": steps})
