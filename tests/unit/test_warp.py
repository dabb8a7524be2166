"""How large a warp is for an SLA."""

from __future__ import annotations

import pytest

from manager.bpf.warp import MAX_US, auto_warp_us


@pytest.mark.parametrize(
    ("response_time_ms", "warp_us"),
    [(1000, 0), (100, 0), (50, 4000), (25, 8000), (10, 13_288), (1, 26_575), (0.1, 39_863), (0.001, MAX_US)],
)
def test_the_tighter_the_sla_the_larger_the_warp(response_time_ms: float, warp_us: int) -> None:
    assert auto_warp_us(response_time_ms) == warp_us


@pytest.mark.parametrize("response_time_ms", [0, -1, float("nan")])
def test_a_response_time_is_positive(response_time_ms: float) -> None:
    with pytest.raises(ValueError, match="response time"):
        auto_warp_us(response_time_ms)
