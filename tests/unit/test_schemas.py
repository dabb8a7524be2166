"""Times and texts as the REST interface takes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from manager.model.fields import Cpus, DomainName, Moment, Name, Text, Uuid, adapter_of, bounds_of, json_of
from manager.model.law import Law
from manager.model.registration import CacheControl, HostSpec, Mode, VmClass, VmSpec
from manager.model.rules import BatchPlacement, IrqSteering, PlacementRules
from manager.model.scheduling import Scheduling, SchedulingPolicy
from manager.model.warp import WarpUse

moment: TypeAdapter[datetime] = TypeAdapter(Moment)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-03-01T12:00:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01t12:00:00z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01 13:00:00.5+01:00", datetime(2026, 3, 1, 12, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-03-01T12:00:00.123456789-00:00", datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)),
        ("1970-01-01T00:00:00Z", datetime(1970, 1, 1, tzinfo=UTC)),
        ("9998-12-31T23:59:59Z", datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_times(text: str, expected: datetime) -> None:
    for strict in (False, True):
        assert moment.validate_json(f'"{text}"', strict=strict) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "0.5",
        "1772366400",
        "2026-03-01",
        "2026-03-01T12:00:00",
        "2026-03-01T12:00Z",
        "2026-03-01T12:00:00+0100",
        "2026-W09-7T12:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-03-01T24:00:00Z",
        "2026-03-01T12:00:00+24:00",
        "2026-03-01T12:00:00Z\n",
        "٢٠٢٦-03-01T12:00:00Z",
        "1969-12-31T23:59:59Z",
        "9999-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
    ],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValidationError):
        moment.validate_python(text)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Name, ["a", "A.b-c_9", "a" * 63], ["", "-a", ".a", "a b", "a\n", "ä", "a" * 64]),
        (DomainName, ["a", "Windows 11 (ä)", "a" * 255], ["", "a\n", "a\0", "\x7f", "a" * 256]),
        (Text, ["", "two\nlines", "a" * 2000], ["a\0", "a" * 2001]),
        (
            Uuid,
            ["6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10"],
            ["", "6f1f5b0e6f0e4b629d2b0d3f6f0f8a10", "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10\n"],
        ),
    ],
)
def test_texts(kind: Any, good: list[str], bad: list[str]) -> None:
    adapter: TypeAdapter[str] = TypeAdapter(kind)
    assert [adapter.validate_python(text) for text in good] == good
    for text in bad:
        with pytest.raises(ValidationError):
            adapter.validate_python(text)


def test_a_uuid_is_answered_in_lower_case() -> None:
    assert TypeAdapter(Uuid).validate_python("6F1F5B0E-6F0E-4B62-9D2B-0D3F6F0F8A10").startswith("6f1f5b0e-")


@pytest.mark.parametrize(
    "spec",
    [
        HostSpec("h"),
        HostSpec("h", Mode.OBSERVE, "fair", False, True, law=Law(gain=1.0)),
        HostSpec("h", warp=WarpUse.SCHED_EXT, warp_max_us=1000),
        HostSpec("h", cache=CacheControl.ON, cache_mount=True, bandwidth_warning=0.5),
        HostSpec(
            "h", placement=PlacementRules(BatchPlacement.FENCE, frozenset({0, 2}), IrqSteering.SERVING, 0.5, 3, 9.0)
        ),
    ],
)
def test_a_host_and_back(spec: HostSpec) -> None:
    assert adapter_of(HostSpec).validate_json(json_of(spec), strict=True) == spec


@pytest.mark.parametrize(
    "spec",
    [
        VmSpec("v", VmClass.BATCH),
        VmSpec("v", VmClass.CRITICAL, "name", None, "h", 7, True, frozenset({1, 2}), 1.5, Mode.OBSERVE),
        VmSpec("v", VmClass.CRITICAL, warp_us="auto"),
        VmSpec("v", VmClass.CRITICAL, scheduling=Scheduling(SchedulingPolicy.FIFO, 3, limit=0.25)),
    ],
)
def test_a_vm_and_back(spec: VmSpec) -> None:
    assert adapter_of(VmSpec).validate_json(json_of(spec), strict=True) == spec


@pytest.mark.parametrize(("text", "answered"), [("", ""), ("3,1,2", "1-3"), ("0-3,8", "0-3,8"), ("07", "7")])
def test_cpu_lists(text: str, answered: str) -> None:
    adapter = TypeAdapter(Cpus)
    assert adapter.dump_python(adapter.validate_python(text)) == answered


@pytest.mark.parametrize("text", ["a", "1-", "3-1", "1,,2", "8192", "-1", " 1", "1\n", "1-2-3", "99999"])
def test_what_is_no_cpu_list(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Cpus).validate_python(text)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in (Law, PlacementRules) for name in bounds_of(kind)])
def test_settings_of_a_host_are_bounded(kind: type, name: str) -> None:
    low, high = bounds_of(kind)[name]
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    for value in (low, high):
        settings = adapter.validate_json(to_json({name: value}), strict=True)
        assert getattr(settings, name) == value
        assert adapter.validate_json(adapter.dump_json(settings), strict=True) == settings
    for value in (low - 1, high + 1, None, "1"):
        with pytest.raises(ValidationError):
            adapter.validate_json(to_json({name: value}), strict=True)
