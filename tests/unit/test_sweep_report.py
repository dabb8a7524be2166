"""What a sweep over cache ways makes of windows, and how it words what came of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from manager.cli.profile_command import SweepReport, percentile_ms, remarks, report_json, table_of
from manager.cli.sweep import SweepStep, SweepTarget, Swept, needed, own_ways, times_of
from manager.control.knee import DEFAULT_RULES
from manager.model.histogram import Histogram
from manager.model.window import Ready, Window, merge

TARGET = SweepTarget("shop", ("kvm1",), (8, 4, 2), 99, 10.0, 5.0, None, '"e"', ())


def window(number: int, longest_ms: float, count: int = 40, ready: Ready | None = None, rate: float = 8) -> Window:
    """A slot of 5 s with so many response times up to the longest."""
    times_us = [1000 * longest_ms * place / count for place in range(1, count + 1)]
    histogram = Histogram() if ready else Histogram.of(times_us)
    return Window("shop", 5.0 * number, 5.0 * number + 5, histogram, 5 * rate, ready)


def step(ways: int, longest_ms: float, slots: int = 18, **more: Any) -> SweepStep:
    windows = [window(number, longest_ms, **more) for number in range(slots)]
    return SweepStep(ways, merge(windows), tuple(times_of(windows, TARGET.percentile)))


def report(
    *steps: SweepStep, target: SweepTarget = TARGET, ended: str = "", left: str = "", kept: bool = False
) -> SweepReport:
    return SweepReport(target, Swept(steps, ended, left, kept), DEFAULT_RULES, "curl X")


@pytest.mark.parametrize(
    ("percentile", "count"), [(50, 2), (95, 20), (99, 100), (99.9, 1000), (0.5, 2), (99.9999, 10_000)]
)
def test_so_many_response_times_make_one_beyond_a_percentile(percentile: float, count: int) -> None:
    assert needed(percentile) == count


def test_slots_are_merged_until_there_are_enough() -> None:
    windows = [window(number, 10.0 + number) for number in range(7)]
    assert len(list(times_of(windows, 95))) == 7
    parts = list(times_of(windows, 99))
    assert len(parts) == 2, "three slots a part, and the seventh is left"
    merged = merge(windows[:3]).percentile_ms(99)
    assert parts[0] == merged
    assert list(times_of(windows[:2], 99)) == []


def test_percentiles_that_a_source_answered_are_taken_as_they_are() -> None:
    windows = [window(number, 1.0, ready=Ready(99, ms)) for number, ms in enumerate((5.0, 90.0, 7.0))]
    times = tuple(times_of(windows, 99))
    assert times == (5.0, 90.0, 7.0)
    found = SweepStep(4, merge(windows), times)
    assert (percentile_ms(found, 99), percentile_ms(found, 95)) == (7.0, None)
    assert list(times_of(windows, 95)) == []


def test_own_ways_are_those_that_the_rest_has_not() -> None:
    def parts(*masks: int) -> list[dict[str, Any]]:
        return [{"domain": one, "ways": mask.bit_count(), "mask": f"{mask:x}"} for one, mask in enumerate(masks)]

    rest = {"name": "", "applications": [], "parts": parts(0xFF0, 0xFFF, 0xFFC)}
    shop = {"name": "equipoise-shop", "applications": ["shop"], "parts": parts(0x00F, 0xFFF, 0x003)}
    assert own_ways({"groups": [rest, shop]}, "shop") == {4, 2}
    assert own_ways({"groups": [rest, shop]}, "bar") == set()
    assert own_ways({"groups": [rest]}, "shop") == set()


def headings(report: SweepReport) -> list[str]:
    return [str(column.header) for column in table_of(report).columns]


def test_the_percentile_of_the_sla_has_a_column_where_it_is_another() -> None:
    other = replace(TARGET, percentile=99.5)
    assert headings(report(step(4, 5.0), target=other))[3:6] == ["p95", "p99", "p99.5"]
    assert "p99.5" not in headings(report(step(4, 5.0)))


def test_the_fewest_ways_for_the_sla_are_those_from_which_on_it_is_met() -> None:
    assert report(step(8, 5.0), step(4, 5.0), step(2, 20.0)).fewest_for_sla == 4
    assert report(step(8, 5.0), step(4, 20.0), step(2, 5.0)).fewest_for_sla == 8, "less is luck"
    assert report(step(8, 5.0), SweepStep(4, lacks="x"), step(2, 5.0)).fewest_for_sla == 2
    violated = report(step(8, 20.0), step(2, 5.0))
    assert violated.fewest_for_sla is None
    assert "The SLA, p99 <= 10 ms, was violated with the most ways." in list(remarks(violated))
    for nothing in (report(ended="interrupted"), report(SweepStep(8, lacks="x"))):
        assert "The SLA, p99 <= 10 ms, could not be judged." in list(remarks(nothing))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "The cache of shop is none of its own again."),
        ({"left": "503"}, "NOT restored: 503. To restore it:"),
        ({"kept": True}, "Another user changed the cache of shop meanwhile: it is left as it is."),
        ({"ended": "interrupted"}, "It ended early: interrupted."),
    ],
)
def test_what_became_of_the_former_value_is_said(given: dict[str, Any], says: str) -> None:
    found = report(step(8, 5.0), **given)
    assert says in list(remarks(found))
    told = report_json(found)
    assert (told["restored"], told["not_restored"]) == (
        not (given.get("left") or given.get("kept")),
        given.get("left", ""),
    )


def test_another_load_and_what_is_missing_are_said() -> None:
    steps = (step(8, 5.0), step(4, 5.0, rate=12), SweepStep(2, lacks="not available"), step(1, 5.0, slots=1))
    said = list(remarks(report(*steps)))
    assert "The load varied: 8/s to 12/s." in said
    assert "2 ways: not available." in said
    assert "1 ways: too few response times to judge." in said
    assert not any("load varied" in one for one in remarks(report(step(8, 5.0), step(4, 5.0, rate=9))))
