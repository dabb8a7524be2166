"""Response times coming in, the windows they make, and the state of the SLA."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from manager.model.fields import adapter_of
from manager.model.histogram import Histogram
from manager.model.window import MAX_COUNT
from manager.protocol.assignment import AssignmentOut
from tests.api.conftest import Api, moment, report, window


def post(api: Api, body: dict[str, Any]) -> int:
    accepted: int = api.ok("POST", "/applications/shop/samples", body, role="operator")["accepted"]
    return accepted


def state(api: Api) -> str:
    answer: str = api.ok("GET", "/applications/shop")["sla_state"]
    return answer


def test_single_times_and_histograms_add_up(shop: Api) -> None:
    buckets = {str(bucket): count for bucket, count in Histogram.of([5000.0] * 30).buckets.items()}
    assert post(shop, {"times_ms": [1.0] * 10, "buckets": buckets}) == 40
    assert post(shop, {"times_ms": [1.0] * 10}) == 10
    window = shop.ok("GET", "/applications/shop")["window"]
    assert (window["start"], window["end"]) == ("2026-03-01T11:59:59Z", "2026-03-01T12:00:00Z")
    assert (window["count"], window["requests"], window["rate_rps"]) == (50, 50, 50.0)
    assert window["p50_ms"] == pytest.approx(5, rel=0.01)
    assert window["p95_ms"] == pytest.approx(5, rel=0.01)
    assert shop.ok("GET", "/applications/shop/windows")["items"] == [window]


def test_no_requests_are_an_answer_too(shop: Api) -> None:
    assert post(shop, {}) == 0
    window = shop.ok("GET", "/applications/shop")["window"]
    assert (window["count"], window["p95_ms"], state(shop)) == (0, None, "no_data")


@pytest.mark.parametrize(
    ("time_ms", "count", "age_s", "expected"),
    [
        (5, 20, 0, "met"),
        (9.5, 20, 0, "at_risk"),
        (11, 20, 0, "violated"),
        (11, 19, 0, "no_data"),
        (11, 20, 30, "violated"),
        (11, 20, 31, "no_data"),
    ],
)
def test_the_state_of_the_sla(shop: Api, time_ms: float, count: int, age_s: float, expected: str) -> None:
    post(shop, {"times_ms": [time_ms] * count})
    shop.clock.now_s += age_s
    assert state(shop) == expected


def test_the_state_does_not_flap_when_a_slot_begins(shop: Api) -> None:
    seen = set()
    for _ in range(40):
        post(shop, {"times_ms": [11.0] * 10})
        seen.add(state(shop))
        shop.clock.now_s += 1
    assert seen == {"no_data", "violated"}
    window = shop.ok("GET", "/applications/shop")["window"]
    assert window["rate_rps"] == pytest.approx(10)


def test_windows_come_newest_first_in_parts(shop: Api) -> None:
    for _ in range(5):
        post(shop, {"times_ms": [1]})
        shop.clock.now_s += 5
    first = shop.ok("GET", "/applications/shop/windows?limit=3")
    second = shop.ok("GET", f"/applications/shop/windows?limit=3&cursor={first['next']}")
    ends = [window["end"][-3:-1] for window in first["items"] + second["items"]]
    assert (ends, second["next"]) == (["20", "15", "10", "05", "00"], None)
    late = shop.ok("GET", "/applications/shop/windows?since=2026-03-01T12:00:10Z")["items"]
    assert [window["end"][-3:-1] for window in late] == ["20", "15"]
    shop.refused(404, "GET", "/applications/blog/windows")


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"times_ms": [1, -1]}, "times_ms[1]", ["-1", "at least 0 and at most 1000000"]),
        ({"times_ms": [1e7]}, "times_ms[0]", ["10000000"]),
        ({"times_ms": ["1"]}, "times_ms[0]", ['"1"', "a number"]),
        ({"times_ms": [1] * 100_001}, "times_ms", ["at most 100000"]),
        ({"buckets": {"1": 1}}, "buckets.1", ['"1"', "counts by bucket number, "]),
        ({"buckets": {"x": 1}}, "buckets.x", ['"x"']),
        ({"buckets": {"500": -1}}, "buckets.500", ["-1", "at least 0"]),
        ({"buckets": {str(n): 2**53 for n in range(500, 510)}}, "buckets", [str(2**53), "in all"]),
        ({"buckets": {"500": 2**53}}, "buckets", [str(2**53), "in all"]),
        ({"requests": 1e15}, "requests", ["1e+15", "in all"]),
        ({"end": "2026-03-01T12:01:01Z"}, "end", ["2026-03-01 12:01:01", "60 s after"]),
        ({"start": "2026-03-01T12:00:01Z"}, "start", ["at most the end"]),
        ({"end": "soon"}, "end", ['"soon"', "RFC 3339"]),
        ({"end": 1772366400}, "end", ["1772366400", "RFC 3339"]),
        ({"requests": -1}, "requests", ["-1", "at least 0"]),
    ],
)
def test_bad_samples_are_refused_as_a_whole(shop: Api, body: Any, field: str, words: list[str]) -> None:
    problem = shop.refused(422, "POST", "/applications/shop/samples", body)
    assert problem["field"] == field
    assert all(word in problem["errors"][0]["message"] for word in words), problem
    assert shop.ok("GET", "/applications/shop/windows")["items"] == []


def test_the_most_that_is_accepted_can_be_read_by_everybody(shop: Api) -> None:
    shop.ok("PUT", "/hosts/kvm1", {})
    shop.ok("PUT", "/vms/web-1", {"class": "critical", "host": "kvm2"})
    most = {"500": MAX_COUNT}
    assert post(shop, {"buckets": most}) == MAX_COUNT
    assert shop.refused(422, "POST", "/applications/shop/samples", {"requests": 1})["field"] == "requests"
    windows = [window(buckets=most, requests=MAX_COUNT)]
    assert shop.ok("POST", "/hosts/kvm2/report", report(windows=windows), role="other host")["stored_windows"] == 1
    [found] = shop.ok("GET", "/applications/shop/windows?buckets=true")["items"]
    assert (found["count"], found["buckets"]) == (2 * MAX_COUNT, {"500": 2 * MAX_COUNT})
    assignment = adapter_of(AssignmentOut).validate_json(shop.call("GET", "/hosts/kvm1/assignment").data)
    assert [window.requests for window in assignment.slots["shop"]] == [2.0 * MAX_COUNT]


def test_samples_of_an_unknown_application_are_refused(api: Api) -> None:
    api.refused(404, "POST", "/applications/shop/samples", {"times_ms": [1]})


def test_times_outside_what_buckets_cover_count_in_the_edge_buckets(shop: Api) -> None:
    assert post(shop, {"times_ms": [0, 1e6]}) == 2
    assert shop.ok("GET", "/applications/shop")["window"]["p99_ms"] == pytest.approx(100_000, rel=0.02)


def test_samples_that_many_send_at_once_are_all_counted(shop: Api) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: post(shop, {"times_ms": [1.0] * 10}), range(60)))
    assert shop.ok("GET", "/applications/shop")["window"]["count"] == 600


def test_times_may_be_a_sample_of_the_requests(shop: Api) -> None:
    post(shop, {"times_ms": [1.0] * 10, "requests": 100})
    post(shop, {"times_ms": [1.0] * 10})
    window = shop.ok("GET", "/applications/shop")["window"]
    assert (window["count"], window["requests"], window["rate_rps"]) == (20, 110, 110)


@pytest.mark.parametrize(("age_s", "taken"), [(300, True), (301, False)])
def test_what_is_late_is_counted_but_not_stored(shop: Api, age_s: int, taken: bool) -> None:
    answer = shop.ok("POST", "/applications/shop/samples", {"times_ms": [1, 2], "end": moment(-age_s)})
    assert answer == ({"accepted": 2, "late": 0} if taken else {"accepted": 0, "late": 2})
    assert bool(shop.ok("GET", "/applications/shop/windows")["items"]) is taken


def post_lines(api: Api, *lines: str) -> Any:
    return api.app.test_client().post(
        "/api/v1/applications/shop/samples",
        data="\n".join(lines).encode(),
        headers={"Content-Type": "application/x-ndjson", "Authorization": f"Bearer {api.secrets['operator']}"},
    )


def test_each_line_counts_in_the_slot_in_which_it_ended(shop: Api) -> None:
    answer = post_lines(
        shop,
        '{"time_ms": 1}',
        "",
        f'{{"time_ms": 2, "end": "{moment(-5)}"}}',
        f'{{"time_ms": 3, "end": "{moment(-4)}"}}\r',
        f'{{"time_ms": 4, "end": "{moment(-301)}"}}',
        f'{{"time_ms": 5, "end": "{moment(2)}"}}',
    )
    assert (answer.status_code, answer.get_json()) == (200, {"accepted": 4, "late": 1})
    windows = shop.ok("GET", "/applications/shop/windows")["items"]
    assert [(one["start"], one["end"], one["count"]) for one in windows] == [
        (moment(0), moment(0)[:-1] + ".000001Z", 1),  # ended after now, by a clock that is ahead
        (moment(-5), moment(0), 2),
        (moment(-10), moment(-5), 1),
    ]


@pytest.mark.parametrize(
    ("lines", "field", "words"),
    [
        (['{"time_ms": 1}', "", '{"time_ms": -1}'], "lines[1].time_ms", ["-1", "at least 0 and at most 1000000"]),
        (["{}"], "lines[0].time_ms", ["is required"]),
        (['{"time_ms": 1, "x": 2}'], "lines[0].x", ["known: end, time_ms"]),
        (["[1]"], "lines[0]", ["an object"]),
        (["{"], "lines[0]", ["JSON"]),
        ([f'{{"time_ms": 1, "end": "{moment(61)}"}}'], "lines[0].end", ["at most 60 s after"]),
        (["{}"] * 100_001, "lines", ["100001", "at most 100000"]),
    ],
)
def test_bad_lines_are_refused_as_a_whole(shop: Api, lines: list[str], field: str, words: list[str]) -> None:
    answer = post_lines(shop, *lines)
    error = answer.get_json()["errors"][0]
    assert (answer.status_code, error["field"]) == (422, field)
    assert all(word in error["message"] for word in words), error
    assert shop.ok("GET", "/applications/shop/windows")["items"] == []


def test_another_kind_of_body_is_refused(shop: Api) -> None:
    answer = shop.app.test_client().post(
        "/api/v1/applications/shop/samples",
        data=b"1",
        headers={"Content-Type": "text/plain", "Authorization": f"Bearer {shop.secrets['operator']}"},
    )
    assert answer.status_code == 415
    assert "application/x-ndjson" in answer.get_json()["detail"]
