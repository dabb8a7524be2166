"""Response times against load, from history or driven, for people, as JSON and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from manager.cli.drive_record import DrivenPass, DriveRecord
from manager.cli.profile_drive import HELD, drive_json
from manager.control.load_curve import MUCH_BATCH, LoadCurve
from manager.control.load_search import LoadVerdict
from manager.errors import SettingsError
from manager.model.fields import timestamp
from manager.model.numbers import digits, duration
from manager.model.units import per_second, percent
from manager.terminal import Table, say


@dataclass(frozen=True)
class LoadProfile:
    """The curves of an application, of all steps and by what batch VMs did; times in seconds since the epoch."""

    application: str
    percentile: float
    sla_ms: float | None
    since_s: float
    until_s: float
    step_s: float
    curves: Mapping[str, LoadCurve]
    drive: DriveRecord | None = None
    ended: str = ""


def tables(profile: LoadProfile) -> Iterator[Table]:
    """A table of all steps, and those of the steps by what batch VMs did where there are enough of both.

    Before these, of a driven profile, the loads of each pass.
    """
    for one in profile.drive.passes if profile.drive else ():
        if one.loads:
            yield _loads_table(profile, one)
    if profile.drive and not profile.curves["all"].bands:
        return
    yield _table(profile, profile.curves["all"], f"{profile.application}: response times by load")
    if profile.curves["without"].bands and profile.curves["beside"].bands:
        yield _table(profile, profile.curves["without"], f"batch VMs below {percent(MUCH_BATCH)} of the host")
        yield _table(profile, profile.curves["beside"], f"batch VMs at {percent(MUCH_BATCH)} of the host or more")


def _loads_table(profile: LoadProfile, one: DrivenPass) -> Table:
    percentile = f"p{profile.percentile:g}"
    where = "batch VMs held" if one.batch == HELD else "batch VMs as they are"
    title = f"{profile.application}: loads that were tried, {where}"
    table = Table("offered", "answered", "p50", percentile, "p99", "batch", "", title=title)
    for load in [*filter(None, [one.peak]), *one.tried]:
        table.add_row(
            "peak" if load.offered_rps is None else per_second(load.offered_rps),
            per_second(load.rate_rps),
            *("-" if ms is None else f"{digits(ms)} ms" for ms in (load.p50_ms, load.percentile_ms, load.p99_ms)),
            "-" if load.batch_share is None else percent(load.batch_share),
            "" if load.verdict is LoadVerdict.UNJUDGED else str(load.verdict),
        )
    return table


def _table(profile: LoadProfile, curve: LoadCurve, title: str) -> Table:
    heading = f"p{profile.percentile:g}"
    table = Table("req/s", "steps", f"{heading}, median", "95 % confidence", "curve", "violated", "", title=title)
    for band in curve.bands:
        table.add_row(
            digits(band.rate_rps),
            f"{band.steps}",
            f"{digits(band.median_ms)} ms",
            f"{digits(band.least_ms)} to {digits(band.most_ms)} ms",
            f"{digits(band.fitted_ms)} ms",
            "-" if profile.sla_ms is None else percent(band.violated_share),
            "<- knee" if band.rate_rps == curve.knee_rps else "",
        )
    return table


def remarks(profile: LoadProfile) -> Iterator[str]:
    """What the tables mean."""
    if profile.drive:
        yield from _driven_remarks(profile.drive)
    curve = profile.curves["all"]
    steps = sum(band.steps for band in curve.bands)
    yield f"Steps of {duration(profile.step_s)}, {steps} with response times."
    if curve.knee_rps is not None:
        yield f"Beyond {digits(curve.knee_rps)} req/s response times rise faster (knee)."
    if curve.why:
        yield f"{curve.why[0].upper()}{curve.why[1:]}."
    yield from _limits(profile)
    without, beside = profile.curves["without"], profile.curves["beside"]
    if without.bands and beside.bands:
        yield from _cost_of_batch(without, beside)
    elif curve.bands:
        yield "What batch VMs cost it is not known: they always ran, or never, or not for long enough."


def _driven_remarks(record: DriveRecord) -> Iterator[str]:
    for one in drive_json(record, "")["passes"]:
        where = " with batch VMs held" if one["batch"] == HELD else ""
        if one["peak_rps"] is not None:
            limit = f" ({one['peak_why']}: the server may take more)" if one["peak_why"] else ""
            yield f"Peak{where}: {per_second(one['peak_rps'])}{limit}."
        qos = "not known" if one["qos_rps"] is None else per_second(one["qos_rps"])
        yield f"Largest load that meets the SLA{where}: {qos}; {one['why']}."


def _limits(profile: LoadProfile) -> Iterator[str]:
    curve = profile.curves["all"]
    if profile.sla_ms is None:
        yield "It has no SLA to compare with."
    elif curve.bands:
        met = f"was met up to {digits(curve.met_rps)} req/s" if curve.met_rps else "was not certainly met at any load"
        violated = (
            f"violated from {digits(curve.violated_rps)} req/s on"
            if curve.violated_rps
            else "violated at no load for certain"
        )
        yield f"The SLA, p{profile.percentile:g} <= {profile.sla_ms:g} ms, {met}, and {violated}."


def _cost_of_batch(without: LoadCurve, beside: LoadCurve) -> Iterator[str]:
    """Beside the band of most like load, where rates differ by less than a tenth."""
    for band in beside.bands:
        alone = min(without.bands, key=lambda other: abs(other.rate_rps - band.rate_rps))
        if alone.median_ms and abs(alone.rate_rps - band.rate_rps) <= 0.1 * band.rate_rps:
            times = band.median_ms / alone.median_ms
            yield f"At {digits(band.rate_rps)} req/s it took {times:.2f} times as long beside batch VMs."


def profile_json(profile: LoadProfile) -> dict[str, Any]:
    """The object that --json prints."""
    return {
        "application": profile.application,
        "percentile": profile.percentile,
        "sla_ms": profile.sla_ms,
        "since": timestamp(profile.since_s).isoformat(),
        "until": timestamp(profile.until_s).isoformat(),
        "step_s": profile.step_s,
        "curves": {name: asdict(curve) for name, curve in profile.curves.items()},
        "drive": None if profile.drive is None else drive_json(profile.drive, profile.ended),
    }


def draw(profile: LoadProfile, file: Path) -> None:
    """Write a picture. Raises SettingsError where that is not possible."""
    limits = drive_json(profile.drive, "")["passes"] if profile.drive else []
    qos_rps = [one["qos_rps"] for one in limits if one["qos_rps"] is not None]
    loads = {
        "batch VMs held" if one.batch == HELD else "loads that were tried": [
            (load.rate_rps, load.percentile_ms) for load in one.tried if load.percentile_ms is not None
        ]
        for one in (profile.drive.passes if profile.drive else ())
    }
    try:
        from manager.cli.load_picture import Driven, draw_load  # noqa: PLC0415 - only who wants a picture needs matplotlib
    except ImportError as error:
        raise SettingsError("--picture needs matplotlib: pip install matplotlib") from error
    try:
        draw_load(
            profile.curves,
            profile.application,
            f"p{profile.percentile:g}",
            profile.sla_ms,
            file,
            Driven(loads, qos_rps),
        )
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}") from error
    say(f"picture: {file}", err=True)
