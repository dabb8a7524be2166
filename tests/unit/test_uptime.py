"""What may be forgotten by uptime: nothing before its time whatever the time of day says, and all of it soon after."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from manager.control.uptime import Boot, Mark, Noted, ahead_s, arrived, marked, uptime_s

KEEP_S = 86_400.0
JUMPS_S = st.sampled_from([0.0, 7200.0, -7200.0, 172_800.0, 31_536_000.0, -31_536_000.0])


@dataclass(frozen=True)
class Step:
    """A run of a job: how long after the one before, by how much the clock was set, what arrived, and reboots."""

    after_s: float
    jump_s: float
    rows: int
    boots: bool


STEPS = st.lists(
    st.builds(Step, st.floats(1, 3600), JUMPS_S, st.integers(0, 50), st.booleans() | st.just(False)),
    min_size=1,
    max_size=80,
)


@given(STEPS)
def test_nothing_goes_before_its_time_and_all_of_it_soon_after(steps: list[Step]) -> None:
    marks: tuple[Mark, ...] = ()
    noted: dict[str, Noted] = {}
    boot, age_s, wall_s, up_s, newest = 0, 50.0, 1.7e9, 0.0, 0
    arrivals: list[tuple[int, float]] = []  # the newest number, and the uptime at which it was there
    for step in steps:
        boots = step.boots and bool(noted)
        boot, age_s = (boot + 1, 5.0) if boots else (boot, age_s + step.after_s)
        up_s += 0.0 if boots or not noted else step.after_s
        wall_s += step.after_s + step.jump_s
        newest += step.rows
        arrivals.append((newest, up_s))
        now = Boot(str(boot), age_s)
        total_s = uptime_s(noted, now)
        noted[now.name] = Noted(now.age_s, total_s)
        assert abs(total_s - up_s) < 1e-3
        marks = marked(marks, Mark(total_s, wall_s, newest), KEEP_S)
        free = arrived(marks, total_s, KEEP_S)
        assert free <= max((number for number, at_s in arrivals if at_s <= up_s - KEEP_S + 1e-3), default=0)
        due_s = up_s - KEEP_S * 1.01 - 3600
        assert free >= max((number for number, at_s in arrivals if at_s <= due_s), default=0)
        assert len(marks) <= 102


def test_numbers_that_are_given_again_make_earlier_marks_void() -> None:
    marks = (Mark(0, 0, 500), Mark(KEEP_S, KEEP_S, 900))
    now = Mark(2 * KEEP_S, 2 * KEEP_S, 3)
    assert marked(marks, now, KEEP_S) == (now,)
    assert arrived((now,), 2 * KEEP_S, KEEP_S) == 0


def test_a_boot_clock_that_goes_back_as_that_of_a_restored_machine_takes_nothing_away() -> None:
    noted = {"a": Noted(5000.0, 9000.0), "b": Noted(10.0, 20.0)}
    assert uptime_s(noted, Boot("a", 4000.0)) == 9000.0
    assert uptime_s(noted, Boot("a", 6000.0)) == 10_000.0
    assert uptime_s(noted, Boot("b", 500.0)) == 9000.0
    assert uptime_s(noted, Boot("new", 1e6)) == 9000.0
    assert uptime_s({}, Boot("new", 1e6)) == 0.0


def test_by_how_much_the_time_of_day_is_ahead_of_what_it_mostly_was() -> None:
    marks = tuple(Mark(60.0 * n, 1e9 + 60.0 * n, n) for n in range(100))
    wrong = tuple(Mark(6000 + 60.0 * n, 1e9 + 3e7 + 6000 + 60.0 * n, 100 + n) for n in range(10))
    assert ahead_s(marks, 6000, 1e9 + 6000) == 0
    assert ahead_s(marks, 6000, 1e9 + 6000 + 3e7) == 3e7
    assert ahead_s(marks, 6000, 1e9 + 6000 - 7200) == -7200
    assert ahead_s(marks + wrong, 6600, 1e9 + 6600) == 0, "it was wrong for ten minutes"
    assert ahead_s((), 5, 5) == 0
