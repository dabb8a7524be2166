"""When memory is said to be used up: beside the most that lasted, for some time, and without flapping."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from manager.control.monitoring import CLEARANCE, HELD, LASTING, LEAST_MAXIMUM, Saturation, next_saturation

GB = 1e9


def after(*rates: float | None, share: float = 0.9, memory: Saturation | None = None) -> Saturation:
    memory = memory or Saturation()
    for rate in rates:
        memory = next_saturation(memory, rate, share)
    return memory


def test_the_maximum_is_the_most_that_lasted() -> None:
    assert after(20 * GB, 20 * GB).maximum is None
    assert after(20 * GB, 21 * GB, 22 * GB).maximum == 20 * GB
    assert after(20 * GB, 21 * GB, 22 * GB, 90 * GB, 1 * GB).maximum == 21 * GB, "one reading alone may be late"
    assert after(20 * GB, None, 20 * GB, 20 * GB).maximum is None, "it was not seen to last"


def test_little_is_no_maximum() -> None:
    idle = after(*[4 * GB] * 20)
    assert idle.maximum is None
    assert not idle.saturated


def test_it_is_said_after_a_while_and_taken_back_after_a_while() -> None:
    learnt = after(*[20 * GB] * HELD, 1 * GB)
    assert not after(*[19 * GB] * (LASTING - 1), memory=learnt).saturated
    full = after(*[19 * GB] * LASTING, memory=learnt)
    assert full.saturated
    assert after(*[17.5 * GB] * 50, memory=full).saturated, "a bit below the bound is not yet below"
    assert after(*[16 * GB] * (LASTING - 1), memory=full).saturated
    assert not after(*[16 * GB] * LASTING, memory=full).saturated
    assert not after(*[19 * GB] * (LASTING - 1), 1 * GB, 19 * GB, memory=learnt).saturated, "not in a row"
    assert after(*[None] * 50, memory=full).saturated, "what is not known changes nothing"


def test_of_a_traffic_that_stays_or_grows_nothing_can_be_said() -> None:
    steady = after(*[20 * GB] * 50)
    assert not steady.saturated
    assert not after(*[number * GB for number in range(6, 90)]).saturated
    back = after(1 * GB, *[20 * GB] * LASTING, memory=steady)
    assert back.saturated, "there was less since, so it is known"
    assert after(*[20.5 * GB] * 50, memory=back).saturated, "hardly more"
    assert not after(*[30 * GB] * 50, memory=back).saturated, "it carries more than was known"


def test_a_share_of_0_says_nothing_and_learns_all_the_same() -> None:
    silent = after(*[20 * GB] * 5, 1 * GB, *[20 * GB] * 50, share=0)
    assert (silent.maximum, silent.saturated) == (20 * GB, False)
    full = after(*[20 * GB] * 5, 1 * GB, *[20 * GB] * 50)
    assert full.saturated
    assert not after(20 * GB, share=0, memory=full).saturated
    assert not after(None, share=0, memory=full).saturated


@given(st.lists(st.none() | st.floats(0, 1e12), max_size=60), st.floats(0.1, 1))
def test_whatever_comes_it_lasts_and_the_maximum_only_grows(rates: list[float | None], share: float) -> None:
    steps = [Saturation()]
    for rate in rates:
        steps.append(next_saturation(steps[-1], rate, share))
    maxima = [one.maximum or 0.0 for one in steps]
    assert maxima == sorted(maxima)
    assert all(one.maximum is None or one.maximum >= LEAST_MAXIMUM for one in steps)
    turned = [number for number, (one, other) in enumerate(pairwise(steps), 1) if one.saturated != other.saturated]
    assert all(later - earlier >= LASTING for earlier, later in pairwise([0, *turned]))
    for number in turned:
        lasting = rates[number - LASTING : number]
        assert None not in lasting
        known, most = [rate for rate in lasting if rate is not None], steps[number].maximum or 0.0
        if steps[number].saturated:
            assert known[-1] > share * most
        else:
            assert known[-1] <= (share - CLEARANCE) * most
