"""What a policy says it does for an application, through the tick to the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from manager.loop.status import tick_status
from manager.loop.tick import TickResult
from manager.model.decision import Decision, Explanation, ShownCause
from manager.model.registration import Application, Mode, Tier
from manager.protocol.report import ShownCauseStatus, TickStatus
from tests.loop.test_decided_knobs import TheRig


@pytest.fixture
def told(tmp_path: Path) -> TheRig:
    made = TheRig(tmp_path)
    shop = Application("shop", (Tier("web", ("web",)),))
    made.assignment = replace(made.assignment, applications=(shop,))
    return made


def reported(result: TickResult) -> dict[str, str]:
    """By application, as the manager reads it."""
    status = TickStatus.model_validate_json(tick_status(result, 0, 0, True).model_dump_json())
    return {each.application: each.text for each in status.explanations}


def explaining(text: str) -> Decision:
    return Decision(explanations=(Explanation("shop", text),))


def test_it_is_reported_for_as_long_as_it_is_given(told: TheRig) -> None:
    assert reported(told.decide(explaining)) == {"shop": "told: 1"}
    assert reported(told.decide(explaining)) == {"shop": "told: 2"}
    assert reported(told.decide(lambda _why: Decision())) == {}


def test_a_cause_that_was_shown_is_reported(told: TheRig) -> None:
    shown = ShownCause("web", 0.5, 0.992, 12.5)
    result = told.decide(lambda why: Decision(explanations=(Explanation("shop", why, shown),)))
    status = TickStatus.model_validate_json(tick_status(result, 0, 0, True).model_dump_json())
    assert [each.cause for each in status.explanations] == [
        ShownCauseStatus(vm="web", fall=0.5, confidence=0.992, age_s=12.5)
    ]


def test_none_is_left_of_a_policy_that_fails_or_whose_host_is_released(told: TheRig) -> None:
    def fail(_why: str) -> Decision:
        raise RuntimeError

    assert reported(told.decide(explaining))
    assert reported(told.decide(fail)) == {}
    assert reported(told.decide(explaining))
    refused = told.decide(lambda _why: Decision(explanations=(Explanation("ghost", ""),)))
    assert "explains application 'ghost'" in refused.problems[0].text
    assert reported(refused) == {}
    assert reported(told.decide(explaining))
    told.control(mode=Mode.RELEASED)
    assert reported(told.tick()) == {}


def test_what_a_third_party_says_is_made_fit_for_the_report(told: TheRig) -> None:
    text = reported(told.decide(lambda _why: explaining("a\x00b\x1b[31m" + "c" * 5000)))["shop"]
    assert text.isprintable()
    assert len(text) == 2000
