"""What may be specified, how it is written, and the arrivals that follow from it."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.load import (
    HttpOptions,
    LoadSpec,
    MemcachedOptions,
    Phase,
    SpecError,
    parse_schedule,
    parse_target,
)
from manager.load.request_times import arrivals
from manager.load.spec import sizes_of


@pytest.mark.parametrize(
    ("text", "phases"),
    [
        ("500x60", (Phase(60, 500),)),
        ("500x60,1000x300,500x60", (Phase(60, 500), Phase(300, 1000), Phase(60, 500))),
        (" 0.5x2 , 0x1.5", (Phase(2, 0.5), Phase(1.5, 0))),
    ],
)
def test_schedule_is_read(text: str, phases: tuple[Phase, ...]) -> None:
    assert parse_schedule(text) == phases


@pytest.mark.parametrize("text", ["", "500", "500x", "x60", "500x60,", "-1x5", "1e3x5", "1.2.3x5", "500*60", "nanx5"])
def test_malformed_schedule_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="RATExSECONDS") as caught:
        parse_schedule(text)
    assert caught.value.field == "schedule"


def test_schedule_out_of_range_names_the_range() -> None:
    with pytest.raises(SpecError, match=r"rate_rps: 0 to 100,000"):
        parse_schedule("500x60,1000000x1")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("http://h", ("http", "h", 80, "/")),
        ("http://192.0.2.1:8080/a/b?c=d", ("http", "192.0.2.1", 8080, "/a/b?c=d")),
        ("http://[2001:db8::1]:81/", ("http", "2001:db8::1", 81, "/")),
        ("memcached://h", ("memcached", "h", 11211, "/")),
        ("memcached://h:1/", ("memcached", "h", 1, "/")),
    ],
)
def test_target_is_read(text: str, target: tuple[str, str, int, str]) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h:80",
        "https://h/",
        "http://",
        "http://h:x/",
        "http://h:70000/",
        "http://u@h/",
        "http://h/#f",
        "memcached://h/x",
    ],
)
def test_malformed_target_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="http://HOST"):
        parse_target(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", 0),
        ("port", 65536),
        ("warmup_s", -1),
        ("connections", 0),
        ("seed", -1),
        ("timeout_s", 0),
        ("timeout_s", 101),
        ("connect_timeout_s", math.nan),
        ("interval_s", 0),
        ("pipeline", 0),
        ("pipeline", 101),
    ],
)
def test_value_out_of_range_names_field_value_and_range(field: str, value: float) -> None:
    arguments: dict[str, object] = {"host": "h", "port": 80, "protocol": HttpOptions(), "schedule": (Phase(1, 1),)}
    with pytest.raises(SpecError, match=rf"{field} = {value!r} is refused: use .* to ") as caught:
        LoadSpec(**(arguments | {field: value}))  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize("schedule", [(), (Phase(10, 0),), (Phase(0, 10),)])
def test_schedule_without_requests_is_refused(schedule: tuple[Phase, ...]) -> None:
    with pytest.raises(SpecError, match="schedule"):
        LoadSpec("h", 80, HttpOptions(), schedule)


@pytest.mark.parametrize("host", ["", "a b", "höst", "[::1]", "a/b"])
def test_unusable_host_is_refused(host: str) -> None:
    with pytest.raises(SpecError, match="host"):
        LoadSpec(host, 80, HttpOptions(), (Phase(1, 1),))


def test_protocol_options_are_checked() -> None:
    for path in ("", "x", "/a b", "/a\r\nHost: x", "/é"):
        with pytest.raises(SpecError, match="path"):
            HttpOptions(path)
    for header in (("", "x"), ("A b", "x"), ("A", "x\r\nB: y")):
        with pytest.raises(SpecError, match="headers"):
            HttpOptions("/", (header,))
    with pytest.raises(SpecError, match="keys"):
        MemcachedOptions(keys=0)
    with pytest.raises(SpecError, match="value_bytes"):
        MemcachedOptions(value_bytes=2_000_000)
    with pytest.raises(SpecError, match="set_share"):
        MemcachedOptions(set_share=1.1)
    for options in (lambda: MemcachedOptions(zipf=6), lambda: HttpOptions("/{key}", keys=2, zipf=-1)):
        with pytest.raises(SpecError, match="zipf"):
            options()
    with pytest.raises(SpecError, match=r"\{key\} in the path"):
        HttpOptions("/", keys=5)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (100, [100, 100, 100]),
        ("100", [100, 100, 100]),
        ("10-19", [10, 15, 19]),
        ("7-7", [7, 7, 7]),
        ("4096x1,100x3", [100, 100, 4096]),
        ("1,3", [1, 3, 3]),
        ("etc", [1, 168, 14605]),
    ],
)
def test_sizes_by_place(text: int | str, sizes: list[int]) -> None:
    assert [sizes_of(text)(place) for place in (0.0, 0.5, 0.9999)] == pytest.approx(sizes, rel=0.01)


@given(st.sampled_from([100, "10-1000", "100x9,4096x1", "etc"]), st.lists(st.floats(0, 1, exclude_max=True)))
def test_sizes_rise_with_the_place_and_stay_in_range(text: int | str, places: list[float]) -> None:
    sizes = [sizes_of(text)(place) for place in sorted(places)]
    assert sizes == sorted(sizes)
    assert all(1 <= size <= 1_000_000 for size in sizes)


@pytest.mark.parametrize(
    "text", [0, "0", "", "-5", "9-5", "0-5", "5-2000000", "1x0", "axb", "1x", "x1", "1..5x2", "ETC"]
)
def test_malformed_sizes_are_refused(text: int | str) -> None:
    with pytest.raises(SpecError, match="1 to 1,000,000, such as") as caught:
        MemcachedOptions(value_bytes=text)
    assert caught.value.field == "value_bytes"


def test_a_closed_loop_needs_a_duration_and_no_rate() -> None:
    spec = LoadSpec("h", 80, HttpOptions(), (Phase(5, 0),), closed_loop=True)
    assert spec.offered_rps is None
    assert LoadSpec("h", 80, HttpOptions(), (Phase(1, 300), Phase(2, 0))).offered_rps == 100
    with pytest.raises(SpecError, match="duration_s"):
        LoadSpec("h", 80, HttpOptions(), (Phase(0, 0),), closed_loop=True)


def test_warm_up_runs_at_the_first_rate() -> None:
    spec = LoadSpec("h", 80, HttpOptions(), (Phase(5, 100), Phase(7, 200)), warmup_s=2)
    assert spec.phases == (Phase(2, 100), Phase(5, 100), Phase(7, 200))
    assert spec.schedule_s == 12


PHASES = st.lists(
    st.builds(Phase, duration_s=st.floats(0, 20), rate_rps=st.one_of(st.just(0.0), st.floats(0.1, 200))),
    min_size=1,
    max_size=5,
)


@given(phases=PHASES, seed=st.integers(0, 2**32))
def test_arrivals_are_a_poisson_process(phases: list[Phase], seed: int) -> None:
    times_s = list(arrivals(phases, seed))
    assert times_s == sorted(times_s)
    assert times_s == list(arrivals(phases, seed))
    begin_s = 0.0
    for phase in phases:
        end_s = begin_s + phase.duration_s
        count = sum(begin_s <= at_s < end_s for at_s in times_s)
        expected = phase.rate_rps * phase.duration_s
        # The tail of a Poisson count falls more slowly than a normal one's where few are expected, hence the + 12.
        assert abs(count - expected) <= 5 * math.sqrt(expected) + 12
        assert count == 0 or phase.rate_rps > 0
        begin_s = end_s
    assert all(0 <= at_s < begin_s for at_s in times_s)


def test_gaps_are_exponential() -> None:
    times_s = list(arrivals((Phase(100, 1000),), seed=7))
    assert abs(len(times_s) - 100_000) < 5 * math.sqrt(100_000)
    gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
    mean_s = sum(gaps_s) / len(gaps_s)
    deviation_s = math.sqrt(sum((gap - mean_s) ** 2 for gap in gaps_s) / len(gaps_s))
    assert mean_s == pytest.approx(0.001, rel=0.02)
    assert deviation_s == pytest.approx(mean_s, rel=0.03)  # as for no other distribution in common use
    for multiple in (0.5, 1, 2, 3):
        share = sum(gap > multiple * mean_s for gap in gaps_s) / len(gaps_s)
        assert share == pytest.approx(math.exp(-multiple), abs=0.01)


def test_seeds_give_different_arrivals() -> None:
    assert list(arrivals((Phase(1, 100),), 1)) != list(arrivals((Phase(1, 100),), 2))
