"""The state of an SLA, as a table."""

from __future__ import annotations

import pytest

from manager.control.sla import sla_state
from manager.model.histogram import Histogram
from manager.model.registration import Sla
from manager.model.window import SlaState, Window

NOW_S = 1_000_000.0
STALE_S = 30.0
SLA = Sla(response_time_ms=100.0)


def window(*times_ms: float, age_s: float = 0.0) -> Window:
    return Window("shop", NOW_S - age_s - 5, NOW_S - age_s, Histogram.of(time_ms * 1000 for time_ms in times_ms))


@pytest.mark.parametrize(
    ("seen", "sla", "state"),
    [
        (None, SLA, SlaState.NO_DATA),
        (window(*[50] * 20), None, SlaState.NO_DATA),
        (window(), SLA, SlaState.NO_DATA),
        (window(*[50] * 19), SLA, SlaState.NO_DATA),
        (window(*[50] * 20), SLA, SlaState.MET),
        (window(*[88] * 20), SLA, SlaState.MET),
        (window(*[95] * 20), SLA, SlaState.AT_RISK),
        (window(*[102] * 20), SLA, SlaState.VIOLATED),
        (window(*[50] * 19, 500), SLA, SlaState.MET),  # 95 % of 20 is the 19th
        (window(*[50] * 18, 500, 500), SLA, SlaState.VIOLATED),
        (window(*[50] * 18, 500, 500), Sla(100.0, percentile=90), SlaState.MET),
        (window(*[50] * 19, 500), Sla(100.0, percentile=99), SlaState.VIOLATED),
        (window(*[500] * 20, age_s=30), SLA, SlaState.VIOLATED),
        (window(*[500] * 20, age_s=30.1), SLA, SlaState.NO_DATA),
        (window(*[500] * 20, age_s=-60), SLA, SlaState.VIOLATED),  # the clock of the source is ahead
        (window(*[0.001] * 20), Sla(5e-324), SlaState.VIOLATED),
    ],
)
def test_state(seen: Window | None, sla: Sla | None, state: SlaState) -> None:
    assert sla_state(seen, sla, NOW_S, STALE_S, min_samples=20) is state


def test_without_a_least_number_of_samples_there_is_still_no_data_in_none() -> None:
    assert sla_state(window(), SLA, NOW_S, STALE_S, min_samples=0) is SlaState.NO_DATA
