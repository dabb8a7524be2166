"""Whether a step of `auto` helped or harmed: what the sequential test says, and how often it errs."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.auto_verdict import CHANCE, FEWEST, HARM_CHANCE, compare, since_last_change

SERIES = 400
MOST = 24


def verdicts(spread: float, effect: float = 0.0, before: int = 8) -> tuple[float, float]:
    """How many of SERIES trials pass for one that helped, and for one that harmed, looked at after each sample."""
    random = Random(f"{spread}/{effect}/{before}")
    helped = harmed = 0
    for _ in range(SERIES):
        earlier = [random.gauss(0, spread) for _ in range(before)]
        under = [random.gauss(effect, spread) for _ in range(MOST)]
        for count in range(FEWEST, MOST + 1):
            compared = compare(earlier, under[:count])
            assert compared is not None
            if compared.helped or compared.harmed:
                helped, harmed = helped + compared.helped, harmed + compared.harmed
                break
    return helped / SERIES, harmed / SERIES


@pytest.mark.parametrize("spread", [0.05, 0.1, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("before", [6, 12])
def test_of_steps_without_effect_no_more_pass_than_is_said(spread: float, before: int) -> None:
    helped, harmed = verdicts(spread, before=before)
    assert helped <= CHANCE
    assert harmed <= HARM_CHANCE


@pytest.mark.parametrize(("spread", "effect", "least"), [(0.1, 0.3, 0.95), (0.3, 0.7, 0.9), (0.6, 1.4, 0.9)])
def test_an_effect_beyond_the_noise_is_seen(spread: float, effect: float, least: float) -> None:
    assert verdicts(spread, -effect)[0] >= least
    assert verdicts(spread, effect)[1] >= least


def test_with_few_samples_nothing_is_said() -> None:
    assert compare([0.0] * FEWEST, [-9.0] * (FEWEST - 1)) is None
    assert compare([0.0] * (FEWEST - 1), [-9.0] * FEWEST) is None


def test_where_nothing_changes_that_is_seen_to_be_futile() -> None:
    same = compare([0.1, -0.1] * 6, [0.1, -0.1] * 4)
    assert same is not None
    assert same.futile
    assert not same.promising
    better = compare([0.1, -0.1] * 6, [-0.4, -0.6] * 4)
    assert better is not None
    assert better.promising
    assert not better.futile


@pytest.mark.parametrize("calm", [3, 6, 9])
@pytest.mark.parametrize("rise", [1.5, -1.5])
def test_samples_of_another_state_are_left_out_once_three_of_the_new_one_are_there(calm: int, rise: float) -> None:
    random = Random(f"{calm}/{rise}")
    before, since = [
        [random.gauss(mean, 0.2) for _ in range(count)] for mean, count in ((-0.8, calm), (-0.8 + rise, 3))
    ]
    assert since_last_change([*before, *since[:2]]) == (*before, *since[:2])
    assert since_last_change([*before, *since]) == tuple(since)


@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0])
def test_one_state_is_seldom_taken_for_two(spread: float) -> None:
    random = Random(f"one state/{spread}")
    series = [[random.gauss(0, spread) for _ in range(12)] for _ in range(SERIES)]
    assert sum(len(since_last_change(values)) < 12 for values in series) <= 0.03 * SERIES


samples = st.lists(st.floats(-5, 5), min_size=FEWEST, max_size=30)


@given(samples, samples, st.floats(-3, 3))
def test_it_depends_on_differences_alone_and_never_says_both(
    before: list[float], under: list[float], shift: float
) -> None:
    compared = compare(before, under)
    moved = compare([value + shift for value in before], [value + shift for value in under])
    assert compared is not None
    assert moved is not None
    assert moved.log_factor == pytest.approx(compared.log_factor, abs=1e-6)
    assert not (compared.helped and compared.harmed)
    back = compare(under, before)
    assert back is not None
    assert back.change == pytest.approx(-compared.change)
    assert back.log_factor == pytest.approx(compared.log_factor, abs=1e-9)
