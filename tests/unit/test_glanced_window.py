"""What is seen of a window at a glance is what the window says, also once it was packed."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manager.control.sla import sla_state
from manager.model.glanced_window import GlancedWindow, PlacedGlance, glance_at, pack_glances, unpack_glances
from manager.model.histogram import Histogram
from manager.model.registration import Sla
from manager.model.window import Ready, Window, merge

percentiles = st.sampled_from([50.0, 95.0, 99.9])
histograms = st.lists(st.floats(100, 1e6), max_size=30).map(Histogram.of)
requests = st.none() | st.floats(0, 1e6)
windows = st.builds(
    lambda start_s, length_s, histogram, served, ready: Window(
        "shop", start_s, start_s + length_s, Histogram() if ready else histogram, served, ready
    ),
    st.integers(0, 100),
    st.integers(0, 10),
    histograms,
    requests,
    st.none() | st.builds(Ready, percentiles, st.floats(0, 1e3)),
)
glances = st.builds(
    PlacedGlance,
    st.integers(0, 2**63),
    st.integers(-(2**62), 2**62),
    st.builds(
        GlancedWindow,
        st.floats(-1e12, 1e12),
        st.floats(-1e12, 1e12),
        st.integers(0, 2**63),
        requests,
        percentiles,
        st.none() | st.floats(0, 1e9),
    ),
)


def ready(value_ms: float) -> Window:
    return Window("shop", 0.0, 0.0, Histogram(), None, Ready(50.0, value_ms))


@example([ready(0.0), ready(1.0)], 50.0, 0, 0)  # of the same time
@given(st.lists(windows, min_size=1, max_size=4), percentiles, st.integers(0, 40), st.integers(0, 40))
def test_it_is_judged_like_the_windows_merged(
    parts: list[Window], percentile: float, min_samples: int, passed_s: int
) -> None:
    whole, seen = merge(parts), glance_at(parts, percentile)
    assert (seen.start_s, seen.end_s, seen.rate_rps) == (whole.start_s, whole.end_s, pytest.approx(whole.rate_rps))
    assert seen.value_ms == whole.percentile_ms(percentile)
    sla, now_s = Sla(20.0, percentile), whole.end_s + passed_s
    assert sla_state(seen, sla, now_s, 30.0, min_samples) is sla_state(whole, sla, now_s, 30.0, min_samples)


def test_another_percentile_than_its_own_is_not_known() -> None:
    seen = glance_at([Window("shop", 0.0, 5.0, Histogram.of([1000.0] * 20))], 95.0)
    assert seen.percentile_ms(95.0) == pytest.approx(1.0, rel=0.01)
    assert seen.percentile_ms(99.0) is None


@given(st.lists(glances, max_size=5))
def test_glances_are_read_back(placed: list[PlacedGlance]) -> None:
    assert unpack_glances(pack_glances(placed)) == placed


@pytest.mark.parametrize("cut", [-1, 1, 70])
def test_bytes_that_are_cut_off_are_refused(cut: int) -> None:
    packed = pack_glances([PlacedGlance(7, 5, GlancedWindow(0.0, 5.0, 3, None, 95.0, 1.5))] * 2)
    with pytest.raises(ValueError, match="not packed glances"):
        unpack_glances(packed[:cut])
