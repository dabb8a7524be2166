"""Decisions where the wall clock is set between two intervals: the same as where it was not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.clocks import Drift, Jump, Times, jump_between, read_times
from manager.control.batch import BatchMemory, guard_batch
from manager.model.decision import Snapshot
from manager.model.law import Law
from policies.fair import POLICY as FAIR
from policies.isolation import POLICY as ISOLATION
from tests.unit.test_feedback_policies import application, batch, critical, moment
from tests.unit.test_ladder import Host

JUMPS_S = [-2 * 3600.0, 2 * 3600.0, -365 * 86_400.0, 365 * 86_400.0]


def steps(law: Law, jump_s: float) -> list[Snapshot]:
    """Response times, then none but some load, then neither; the clock is set before the last of the response times."""
    found = []
    for number in range(60):
        ahead_s = jump_s if number >= 5 else 0.0
        now_s = 1e9 + 5 * number + ahead_s
        end_s = now_s if number < 10 else 1e9 + 45 + ahead_s
        busy = 0.3 if number < 40 else 0.0
        seen = moment(
            [critical("a", "one", busy), critical("b", "two", 0.2), batch("c")],
            [
                application("one", [300.0 + 40 * number], 500, end_s=end_s, max_rate_rps=100),
                application("two", [400.0], 500, rate_rps=60.0 - number, end_s=now_s, max_rate_rps=30),
            ],
            law,
            now_s=now_s,
        )
        found.append(replace(seen, ahead_s=ahead_s))
    return found


def decided(policy, law: Law, jump_s: float) -> list[object]:
    memory, batches, found = None, BatchMemory(), []
    for seen in steps(law, jump_s):
        decision = policy.decide(seen, memory)
        memory = decision.memory
        guarded, batches = guard_batch(decision, seen, batches)
        found.append((guarded.weights, decision.notes))
    return found


@pytest.mark.parametrize("jump_s", JUMPS_S)
@pytest.mark.parametrize("policy", [FAIR, ISOLATION])
@pytest.mark.parametrize("law", [Law(), Law(published=True)])
def test_holds_fallbacks_and_decays_take_as_long(policy, law: Law, jump_s: float) -> None:
    plain = decided(policy, law, 0.0)
    assert len({str(one) for one in plain}) > 3, "something happens"
    assert decided(policy, law, jump_s) == plain


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_the_ladder_tries_again_after_as_long(jump_s: float) -> None:
    def loads(jump_s: float) -> list[bool]:
        host = Host(refuses=True)
        found = []
        for number in range(120):
            if number == 30:
                host.now_s += jump_s
                host.ahead_s += jump_s
            found.append(host.plan().load)
        return found

    plain = loads(0.0)
    assert 2 < sum(plain) < 60, "it waits between tries"
    assert loads(jump_s) == plain


@pytest.mark.parametrize("jump_s", JUMPS_S)
def test_a_clock_that_is_set_is_seen_and_one_that_is_slewed_is_not(jump_s: float) -> None:
    before = Times(1.8e9, 100.0, 150.0)
    after = Times(1.8e9 + 5 + jump_s, 105.0, 155.0)
    assert jump_between(before, after) == Jump(pytest.approx(jump_s))
    assert jump_between(before, Times(1.8e9 + 5.9, 105.0, 155.0)) is None
    drift = Drift()
    assert [drift.at(1e9, 5.0), drift.at(1e9 + 1.001, 6.0)] == [0.0, 0.0]
    assert drift.at(1e9 + 2 + jump_s, 7.0) == pytest.approx(jump_s, abs=0.01)


def test_what_happened_is_told_in_words() -> None:
    before = Times(1.8e9, 100.0, 150.0)
    slept = jump_between(before, Times(1.8e9 + 3605, 105.0, 3755.0))
    assert slept is not None
    assert slept.text == "resumed after 3600 s (60 min) of suspend"
    both = jump_between(before, Times(1.8e9 + 3605 - 7200, 105.0, 3755.0))
    assert both is not None
    assert both.text.endswith("of suspend; the wall clock was set 7200 s (2 h) back")
    assert Jump(7200.0).text == "the wall clock was set 7200 s (2 h) ahead"
    assert Jump(-365 * 86_400.0).text == "the wall clock was set 31536000 s (365 days) back"
    assert Jump(1.5).text == "the wall clock was set 1.5 s ahead"


def test_two_looks_at_the_real_clocks_see_no_jump() -> None:
    first, second = read_times(), read_times()
    assert jump_between(first, second) is None
