"""Twin and interference tables together: the more careful verdict, and what the other says where they disagree."""

from __future__ import annotations

import pytest

from manager.control.admission_opinions import Opinion, combined, most_careful
from manager.model.verdict import FitVerdict

YES, NO, UNSURE = FitVerdict.YES, FitVerdict.NO, FitVerdict.UNSURE


@pytest.mark.parametrize(("verdicts", "careful"), [([YES, NO, UNSURE], NO), ([YES, UNSURE], UNSURE), ([YES], YES)])
def test_the_most_careful(verdicts: list[FitVerdict], careful: FitVerdict) -> None:
    assert most_careful(*verdicts) is careful


@pytest.mark.parametrize(
    ("twin", "tables", "verdict", "reasons"),
    [
        (YES, YES, YES, ("twin", "table")),
        (NO, NO, NO, ("twin", "table")),
        (YES, NO, NO, ("table", "the twin, less careful: yes: twin")),
        (NO, UNSURE, NO, ("twin", "tables, less careful: unsure: table")),
        (UNSURE, YES, UNSURE, ("twin", "tables, less careful: yes: table")),
    ],
)
def test_both_are_said(twin: FitVerdict, tables: FitVerdict, verdict: FitVerdict, reasons: tuple[str, ...]) -> None:
    found = combined(Opinion("the twin", twin, ("twin",)), Opinion("tables", tables, ("table",)))
    assert (found.verdict, found.reasons) == (verdict, reasons)
