"""What a window of response times means for an SLA."""

from __future__ import annotations

from manager.model.glanced_window import GlancedWindow
from manager.model.registration import Sla
from manager.model.window import SlaState, Window

USUAL_PERCENTILE = 95.0
"""The percentile that is shown of an application without an SLA."""

AT_RISK_FRACTION = 0.9
"""Above this fraction of the target an SLA that is met counts as at risk."""


def watched_percentile(sla: Sla | None) -> float:
    """The percentile that an application is judged by, and the one to show: its SLA's own."""
    return sla.percentile if sla else USUAL_PERCENTILE


def sla_state(
    window: Window | GlancedWindow | None, sla: Sla | None, now_s: float, stale_s: float, min_samples: int
) -> SlaState:
    """The state of ``sla`` as of ``now_s`` (seconds since the epoch).

    No data: no SLA, no window, one older than ``stale_s``, or fewer than ``min_samples`` response times.
    """
    if sla is None or window is None or window.age_s(now_s) > stale_s or not window.has_samples(min_samples):
        return SlaState.NO_DATA
    measured_ms = window.percentile_ms(sla.percentile)
    if measured_ms is None:
        return SlaState.NO_DATA
    if measured_ms > sla.response_time_ms:
        return SlaState.VIOLATED
    return SlaState.AT_RISK if measured_ms > AT_RISK_FRACTION * sla.response_time_ms else SlaState.MET
