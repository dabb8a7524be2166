"""What the doctor makes of late wake-ups beside batch groups."""

from __future__ import annotations

import pytest

from manager.host.doctor.batch_group_check import Round, WakePhase, is_needed, judge

SHORT, LONG = 1_999_999, 2_000_000


def phase(waits: int, long: int, writes: int = 400) -> WakePhase:
    return WakePhase((LONG,) * long + (SHORT,) * (waits - long), writes)


@pytest.mark.parametrize(
    ("apart", "together", "needed"),
    [
        (phase(20, 2), phase(20, 0), True),
        (phase(10, 1), phase(30, 0), True),  # who waits wakes up less often
        (phase(20, 2, writes=20), phase(20, 0), True),  # what was seen does not depend on how often
        (phase(50, 10), phase(50, 2), True),
        (phase(50, 7), phase(50, 2), None),
        (phase(60, 18), phase(50, 3), None),  # other causes
        (phase(30, 2), phase(30, 0), None),  # neither many nor few
        (phase(0, 0), phase(30, 0), None),
        (phase(20, 2), phase(9, 0), None),
        (phase(30, 0), phase(30, 0), False),
        (phase(40, 2), phase(40, 2), False),
        (phase(30, 0, writes=199), phase(30, 0), None),  # a fault would not show
        (phase(30, 0), phase(30, 0, writes=199), None),
        (phase(9, 0), phase(30, 0), None),
        (phase(30, 0), phase(30, 30), None),
    ],
)
def test_the_verdict(apart: WakePhase, together: WakePhase, needed: bool | None) -> None:
    rounds: list[Round] = [(apart, together)] * 6
    assert is_needed(rounds) is needed
    assert judge(rounds).status == {True: "degraded", False: "works", None: "unknown"}[needed]


def test_nothing_seen_is_no_verdict() -> None:
    assert is_needed([]) is None
