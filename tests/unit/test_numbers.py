"""Numbers as people read them."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.numbers import digits

TOP = Path(__file__).parents[2]
POWERS_ALLOWED = {
    "manager/clocks.py": "seconds, below two minutes",
    "manager/control/placement.py": "capacity of a pCPU, 0 to 1",
    "manager/control/warp_plan.py": "a factor, 0 to 1",
    "manager/model/knobs.py": "Mbit/s, at most 4,294,968",
    "manager/sim/twin_prediction.py": "milliseconds from 0.1 to 10",
    "policies/auto_steps.py": "keys of what was learnt",
    "webui/drawing.py": "coordinates of a picture",
}
"""Where a format that can write a power of ten does not, or writes for no person."""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.000_012_34, "0.000012"),
        (0.0123, "0.0123"),
        (0.5, "0.5"),
        (9.999, "10"),
        (12.34, "12.3"),
        (999.6, "1,000"),
        (1190.0, "1,190"),
        (123_456.7, "123,457"),
        (-12.34, "-12.3"),
        (math.inf, "inf"),
    ],
)
def test_three_digits(value: float, text: str) -> None:
    assert digits(value) == text


def test_more_digits_where_they_count() -> None:
    assert digits(180.44, 4) == "180.4"


@given(st.floats(-1e12, 1e12), st.integers(3, 6))
def test_no_power_of_ten_and_little_lost(value: float, count: int) -> None:
    text = digits(value, count)
    assert re.fullmatch(r"-?[0-9,]+(\.[0-9]{1,6})?", text)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=10.0**-count * 5, abs=1e-6)


def test_nothing_for_people_is_written_as_a_power_of_ten() -> None:
    found = {
        str(path.relative_to(TOP))
        for room in ("manager", "policies", "webui")
        for path in (TOP / room).rglob("*.py")
        if re.search(r":,?\.\dg\}", path.read_text())
    }
    assert found == set(POWERS_ALLOWED), "use digits() of manager.model.numbers"


def test_shares_have_a_space_before_their_unit() -> None:
    found = [
        str(path.relative_to(TOP))
        for room in ("manager", "policies", "webui", "deploy")
        for path in (TOP / room).rglob("*.py")
        if re.search(r":[.,\d]*%\}", path.read_text())
    ]
    assert not found, "use percent() of manager.model.units, or of webui.words"
