"""Error budgets: attainment, what is left, and how fast it burns."""

from __future__ import annotations

import pytest

from manager.control.error_budget import PERIOD_S, WINDOWS_S, Judged, burning
from manager.model.window import Burn

QUIET = dict.fromkeys(WINDOWS_S, Judged(1000, 0))


def test_the_budget_is_what_the_target_leaves() -> None:
    judged = Judged(1000, 5)
    assert judged.attainment == pytest.approx(0.995)
    assert judged.burn_rate(0.99) == pytest.approx(0.5)
    assert judged.budget_remaining(0.99) == pytest.approx(0.5)
    assert Judged(1000, 30).budget_remaining(0.99) == pytest.approx(-2)
    assert (Judged().attainment, Judged().burn_rate(0.99), Judged().budget_remaining(0.99)) == (None, None, None)


@pytest.mark.parametrize(
    ("violated", "burn"),
    [
        ({}, Burn.NONE),
        ({3600.0: 200, 300.0: 200}, Burn.FAST),
        ({3600.0: 200}, Burn.NONE),  # over by now
        ({300.0: 200}, Burn.NONE),  # too short to matter yet
        ({3600.0: 100, 300.0: 100, 21600.0: 70, 1800.0: 70}, Burn.SLOW),
        ({PERIOD_S: 1000}, Burn.NONE),
    ],
)
def test_a_short_window_confirms_a_long_one(violated: dict[float, int], burn: Burn) -> None:
    assert burning(QUIET | {length: Judged(1000, count) for length, count in violated.items()}, 0.99) is burn


def test_nothing_burns_where_nothing_was_judged() -> None:
    assert burning(dict.fromkeys(WINDOWS_S, Judged()), 0.99) is Burn.NONE
