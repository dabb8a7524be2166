"""Response times against load as a picture. Needs matplotlib, which is not installed with Equipoise itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from manager.control.load_curve import LoadCurve

_STYLES = {"all": ("black", "all steps"), "without": ("#0072b2", "little batch"), "beside": ("#d55e00", "beside batch")}


@dataclass(frozen=True, slots=True)
class Driven:
    """Of a driven profile: rate and percentile in ms of each load, by pass, and the largest loads within the SLA."""

    loads: Mapping[str, Sequence[tuple[float, float]]]
    qos_rps: Sequence[float] = ()


def draw_load(
    curves: Mapping[str, LoadCurve],
    name: str,
    percentile: str,
    sla_ms: float | None,
    file: Path,
    driven: Driven,
) -> None:
    """Medians with their confidence, the curve, and the target, in the format of the file's ending.

    Raises OSError when it cannot be written.
    """
    mpl.use("agg")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    split = all(curves[key].bands for key in ("without", "beside"))
    for key in ("without", "beside") if split else ("all",):
        colour, label = _STYLES[key]
        bands = curves[key].bands
        rates = [band.rate_rps for band in bands]
        below = [band.median_ms - band.least_ms for band in bands]
        above = [band.most_ms - band.median_ms for band in bands]
        axes.errorbar(
            rates, [band.median_ms for band in bands], (below, above), fmt="o", color=colour, capsize=3, label=label
        )
        axes.plot(rates, [band.fitted_ms for band in bands], color=colour)
    if sla_ms is not None:
        axes.axhline(sla_ms, color="0.5", linestyle="--", label=f"SLA, {sla_ms:g} ms")
    for marker, (label, loads) in zip("x+", sorted(driven.loads.items()), strict=False):
        rates, times_ms = [rate_rps for rate_rps, _ in loads], [time_ms for _, time_ms in loads]
        axes.plot(rates, times_ms, marker, color="0.4", label=label)
    for number, rate_rps in enumerate(driven.qos_rps):
        axes.axvline(rate_rps, color="0.5", linestyle=":", label=None if number else "largest load within the SLA")
    axes.set_xlabel("req/s")
    axes.set_ylabel(f"{percentile}, ms")
    if any(driven.loads.values()):
        axes.set_yscale("log")  # from idle to saturated it is three orders of magnitude
        axes.set_xlim(left=0)
    else:
        axes.set_ylim(bottom=0)
    axes.legend()
    axes.set_title(name)
    figure.savefig(file, dpi=100)
