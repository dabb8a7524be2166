"""What the server draws, and the words for numbers."""

from __future__ import annotations

from enum import StrEnum
from typing import get_args, get_type_hints

import pytest

from manager.control.violation_case import Measure
from manager.model.finding import FindingStatus
from manager.model.numbers import milliseconds
from manager.model.records import OutcomeKind, Severity
from manager.model.source import SourceState
from manager.model.verdict import FitVerdict, VerdictKind
from manager.model.window import Burn, SlaState
from webui.drawing import spark, split
from webui.words import (
    BADGES,
    CAUSES,
    MEASURES,
    NOTHING,
    ago,
    attainment,
    budget,
    burn,
    duration,
    measured,
    percent,
    prose,
    rate,
    vcpu_wait,
)


def test_a_line_goes_from_edge_to_edge_with_the_limit_in_it() -> None:
    line = spark([10, 20, 5], 16, width=30, height=100)
    assert line.lines == ("5,60 15,20 25,80",)
    assert line.limit_y == 36
    assert line.over == "M10,36V20h10V36"
    assert line.highest == 20


def test_gaps_part_the_line_and_a_single_value_is_still_seen() -> None:
    line = spark([1, 1, None, 1, None], None, width=50, height=10)
    assert [len(points.split()) for points in line.lines] == [2, 2]
    assert line.lines[1] == "30,2 35,2"
    assert (line.limit_y, line.over) == (None, "")


def test_without_values_there_is_no_line() -> None:
    line = spark([None, None], 5)
    assert (line.lines, line.highest) == ((), None)
    assert line.limit_y is not None


def test_a_bar_is_never_longer_than_the_whole() -> None:
    parts = split([("critical", 0.7), ("batch", 0.5), ("other", -0.1)])
    assert [(part.name, round(part.start, 6), round(part.share, 6)) for part in parts] == [
        ("critical", 0, 0.7),
        ("batch", 0.7, 0.3),
        ("other", 1, 0),
    ]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (milliseconds(0.84), "0.84 ms"),
        (milliseconds(612.4), "612 ms"),
        (milliseconds(42_000), "42 s"),
        (milliseconds(5.0), "5 ms"),
        (milliseconds(12.34), "12.3 ms"),
        (milliseconds(100.0), "100 ms"),
        (milliseconds(0.0), "0 ms"),
        (milliseconds(None), "–"),
        (rate(24.13), "24.1 req/s"),
        (burn(0.04), "0×"),
        (burn(2.46), "2.5×"),
        (burn(41.7), "42×"),
        (burn(None), "–"),
        (budget(0.381), "38 %"),
        (budget(-9.5), "used up"),
        (budget(None), "–"),
        (percent(0.0004), "0 %"),
        (percent(0.031), "3.1 %"),
        (percent(0.05), "5 %"),
        (percent(0.5), "50 %"),
        (attainment(1.0), "100 %"),
        (attainment(0.999_999), "99.99 %"),
        (attainment(0.5), "50 %"),
        (duration(45), "45 s"),
        (duration(600), "10 min"),
        (duration(5400), "1.5 h"),
        (duration(7200), "2 h"),
        (ago(12), "12 s ago"),
        (ago(185), "3 min ago"),
        (ago(3 * 86_400), "3 days ago"),
    ],
)
def test_numbers_have_units_and_no_more_digits_than_they_mean(said: str, words: str) -> None:
    assert said == words


@pytest.mark.parametrize(
    ("states", "kind"),
    [
        (SlaState, "sla"),
        (Burn, "burn"),
        (FindingStatus, "finding"),
        (Severity, "severity"),
        (OutcomeKind, "outcome"),
        (FitVerdict, "fit"),
    ],
)
def test_every_state_has_a_badge(states: type[StrEnum], kind: str) -> None:
    assert {str(state) for state in states} == BADGES[kind].keys()


def test_sources_and_verdicts_have_words() -> None:
    assert {str(state) for state in SourceState} <= BADGES["source"].keys()
    assert {str(kind) for kind in VerdictKind} == CAUSES.keys()
    metrics: object = get_args(get_args(get_type_hints(Measure, include_extras=True)["metric"])[0])
    assert set(metrics) == MEASURES.keys()  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("value", "metric", "shown"),
    [
        (None, "disk_latency_ms", NOTHING),
        (0.25, "wait_share", "25 %"),
        (0.25, "io_pressure", "25 %"),
        (42.0, "disk_latency_ms", "42 ms"),
        (120.0, "refaults_per_s", "120 /s"),
        (250.0, "resume_us", "0.25 ms"),
        (0.5, "clock_part", "50 %"),
        (2.5e6, "disk_bytes_per_s", "2.5 MB/s"),
    ],
)
def test_measures_of_a_likely_cause_have_units(value: float | None, metric: str, shown: str) -> None:
    assert measured(value, metric) == shown


def test_vcpu_wait_is_a_share_of_runnable_time() -> None:
    assert vcpu_wait({"cpu_share": 0.25, "run_delay_share": 1.0}, 4) == 0.5
    assert vcpu_wait({"cpu_share": 0.0, "run_delay_share": 0.0}, 4) == 0.0
    assert vcpu_wait({"cpu_share": 0.25, "run_delay_share": 1.0}, 0) is None


@pytest.mark.parametrize(
    ("text", "page"),
    [
        (
            "use `equipoise record`, then `equipoise replay`",
            "use <code>equipoise record</code>, then <code>equipoise replay</code>",
        ),
        ("`<b>` is refused & more", "<code>&lt;b&gt;</code> is refused &amp; more"),
        ("a ` alone", "a ` alone"),
        ("`a` and `", "<code>a</code> and `"),
        ("\u202e`\x07`", r"\u202e<code>\x07</code>"),
        (None, ""),
    ],
)
def test_names_and_commands_in_a_sentence_are_shown_as_such(text: str | None, page: str) -> None:
    assert prose(text) == page
