"""Counting: warm-up, intervals, errors, and when the numbers are about the client. No clock, no network."""

import json
from dataclasses import replace

import pytest

from manager.cli.drive_record import driven_load
from manager.cli.load_report import progress_line, result_lines
from manager.control.load_search import NextLoad
from manager.load import HttpOptions, IntervalResult, LoadResult, LoadSpec, Phase
from manager.load.recorder import Recorder
from manager.model.histogram import Histogram

START_S = 1000.0
SPEC = LoadSpec("h", 80, HttpOptions(), (Phase(3, 10),), interval_s=1)


def started(spec: LoadSpec = SPEC) -> tuple[Recorder, list[IntervalResult]]:
    intervals: list[IntervalResult] = []
    recorder = Recorder(spec, intervals.append)
    recorder.begin(START_S)
    return recorder, intervals


def finish(recorder: Recorder, after_s: float) -> LoadResult:
    return recorder.finish(START_S + after_s, 0.5, 0.1, {})


def test_requests_due_in_the_warm_up_are_not_counted() -> None:
    recorder, _ = started()
    for intended_s in (START_S - 2, START_S - 0.001):
        recorder.due(intended_s, intended_s)
        recorder.answered(intended_s, START_S + 0.5)  # even when they end after it
        recorder.failed(intended_s, "timeout", 10)
    recorder.due(START_S, START_S + 0.001)
    recorder.answered(START_S, START_S + 0.002)
    result = finish(recorder, 3)
    assert (result.sent, result.answered, result.errors) == (1, 1, {})
    assert result.histogram.count == result.lateness.count == 1
    assert result.mean_us == result.max_us == pytest.approx(2000)
    assert result.lateness_max_us == pytest.approx(1000)


def test_nothing_counts_before_the_begin() -> None:
    recorder = Recorder(SPEC, None)
    recorder.failed(START_S, "reset")
    recorder.close_until(START_S)
    recorder.begin(START_S)
    result = finish(recorder, 3)
    assert (result.sent, result.answered, result.errors) == (0, 0, {})
    assert (result.mean_us, result.max_us, result.lateness_max_us, result.rate_rps) == (None, None, None, 0)


def test_intervals_split_by_the_end_of_the_request() -> None:
    recorder, intervals = started()
    recorder.due(START_S + 0.9, START_S + 0.9)
    recorder.close_until(START_S + 0.999)
    assert not intervals
    recorder.close_until(START_S + 1.001)
    recorder.answered(START_S + 0.9, START_S + 1.1)
    recorder.failed(START_S + 0.95, "http_503")
    recorder.close_until(START_S + 2.5)
    result = finish(recorder, 3.2)
    assert result.intervals == tuple(intervals)
    assert [(i.start_s, round(i.end_s, 6), i.sent, i.answered, i.errors) for i in intervals] == [
        (0, 1, 1, 0, {}),
        (1, 2, 0, 1, {"http_503": 1}),
        (2, 3.2, 0, 0, {}),
    ]
    assert intervals[1].histogram == Histogram.of([200_000])
    assert intervals[1].rate_rps == 1
    assert intervals[1].end_epoch_s - intervals[0].end_epoch_s == pytest.approx(1, abs=0.1)


def test_seconds_without_an_answer_are_no_steps_of_a_load_curve() -> None:
    """A server that hangs after a second: its time-outs are not what it takes at 0 req/s."""
    recorder, _ = started()
    for number in range(60):
        intended_s = START_S + number / 30
        recorder.due(intended_s, intended_s)
        if number < 30:
            recorder.answered(intended_s, intended_s + 0.01)
        if number == 29:
            recorder.close_until(START_S + 2)
    for number in range(30, 60):
        recorder.failed(START_S + number / 30, "timeout", 1)
    [(rate_rps, percentile_ms)] = driven_load(finish(recorder, 3), NextLoad(30, "sweep"), 95, 50).steps
    assert (rate_rps, percentile_ms) == (30, pytest.approx(10, rel=0.01))


@pytest.mark.parametrize(
    ("schedule_s", "ends_s", "expected"),
    [
        (3, 3.1, [1, 2, 3.1]),  # late answers belong to the last interval …
        (3, 6.5, [1, 2, 4, 5, 6, 6.5]),  # … unless they take longer than one
        (2.5, 2.6, [1, 2, 2.6]),
        (0.5, 0.6, [0.6]),
        (3, 1.4, [1, 1.4]),  # stopped early
        (3, -1, []),  # stopped in the warm-up
    ],
)
def test_last_interval_waits_for_late_answers(schedule_s: float, ends_s: float, expected: list[float]) -> None:
    recorder, intervals = started(replace(SPEC, schedule=(Phase(schedule_s, 10),)))
    finish(recorder, ends_s)
    assert [interval.end_s for interval in intervals] == pytest.approx(expected)


def test_rate_is_over_the_time_the_server_took() -> None:
    recorder, _ = started()
    for number in range(10):
        recorder.answered(START_S + number / 10, START_S + 5)
    recorder.failed(START_S + 2, "timeout", 10)
    result = finish(recorder, 12)
    assert result.duration_s == pytest.approx(5)
    assert result.rate_rps == pytest.approx(2)


def test_only_timed_errors_have_a_response_time() -> None:
    recorder, _ = started()
    recorder.failed(START_S, "timeout", 10)
    recorder.failed(START_S, "timeout", 10)
    recorder.failed(START_S, "reset")
    result = finish(recorder, 3)
    assert result.errors == {"timeout": 2, "reset": 1}
    assert result.histogram == Histogram.of([10_000_000, 10_000_000])
    assert result.answered == 0


@pytest.mark.parametrize(
    ("time_us", "late_us", "cpu_share", "limits"),
    [
        (200, 900, 0.1, 0),  # under 1 ms
        (200, 1100, 0.1, 1),
        (50_000, 4000, 0.1, 0),  # under a tenth of the p95
        (50_000, 6000, 0.1, 1),
        (50_000, 100, 0.81, 1),
        (200, 1100, 0.81, 2),
    ],
)
def test_client_limits(time_us: float, late_us: float, cpu_share: float, limits: int) -> None:
    recorder, _ = started()
    result = replace(
        finish(recorder, 3),
        histogram=Histogram.of([time_us] * 100),
        lateness=Histogram.of([late_us] * 100),
        cpu_share=cpu_share,
    )
    assert len(result.client_limits) == limits
    assert result.to_json()["client_limited"] == bool(limits)


def test_client_limit_is_printed_as_a_warning() -> None:
    recorder, _ = started()
    recorder.due(START_S, START_S + 0.5)
    recorder.answered(START_S, START_S + 0.6)
    warning = list(result_lines(finish(recorder, 3)))[-1]
    assert warning.startswith("Warning: the numbers are about this load generator, not the server: its lateness p99")


@pytest.mark.parametrize(
    ("waited", "lost", "cpu_share", "why"),
    [
        (0, 0, 0.1, ""),
        (3, 0, 0.1, ""),
        (3, 0, 1.0, ""),
        (
            9,
            0,
            0.1,
            "of 4 req/s only 1 req/s could be sent, as the server did not answer soon enough",
        ),
        (
            9,
            0,
            1.0,
            "of 4 req/s only 1 req/s could be sent, as this load generator is too slow (it used 100 % of a core",
        ),
        (3, 6, 0.1, "of 4 req/s only 2 req/s could be sent, as the server did not answer soon enough"),
    ],
)
def test_a_rate_that_was_not_reached_is_reported(waited: float, lost: int, cpu_share: float, why: str) -> None:
    """Twelve requests in three seconds; the last leaves the queue after ``waited``, and ``lost`` never do."""
    recorder, _ = started()
    for number in range(12):
        recorder.due(START_S + number / 4, START_S + number / 4)
        if number < lost:
            recorder.failed(START_S + number / 4, "queue_timeout", 1)
    recorder.dequeued(START_S + waited)
    result = replace(finish(recorder, max(waited, 3)), cpu_share=cpu_share)
    assert result.shortfall.startswith(why)
    assert bool(result.shortfall) == bool(why)
    assert ("Warning" in list(result_lines(result))[-1]) == bool(result.client_limits and not result.shortfall)
    assert replace(result, spec=replace(SPEC, closed_loop=True)).shortfall == ""


def test_progress_fills_a_bar() -> None:
    recorder, intervals = started()
    recorder.close_until(START_S + 2.001)
    assert progress_line(intervals[1], 4).startswith(f"[{'=' * 12}{' ' * 12}] 2 of 4 s")
    assert f"[{'=' * 24}]" in progress_line(intervals[1], 1)


def test_json_holds_what_callers_need() -> None:
    recorder, _ = started()
    recorder.due(START_S, START_S + 0.0001)
    recorder.answered(START_S, START_S + 0.01)
    recorder.failed(START_S, "reset")
    document = json.loads(json.dumps(finish(recorder, 3.01).to_json()))
    assert document["target"] == "http://h:80/"
    assert document["p50_us"] == document["p99_us"] == pytest.approx(10_000, rel=0.01)
    assert document["lateness"]["p99_us"] == pytest.approx(100, rel=0.01)
    assert document["errors"] == {"reset": 1}
    assert sum(document["histogram"]["buckets"].values()) == 1
    assert document["intervals"][0]["buckets"] == document["histogram"]["buckets"]
    assert {"mean_us", "max_us", "rate_rps", "sent", "answered", "cpu_s", "client_limited"} <= document.keys()
