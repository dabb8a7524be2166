"""Ticks as an agent packs them for the manager, which stores the bytes as they come, once it has seen what they are."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import Field, ValidationError

from manager.model.fields import CLOSED, Count, Name, Share, Weight, adapter_of, json_fields, timestamp
from manager.model.packed_records import (
    MINUTE_US,
    microseconds,
    pack_tick_fields,
    tick_text,
    unpack_ticks,
    within_minutes,
)
from manager.model.records import TickRecord, VcpuTick, VmTick
from manager.model.registration import Mode

MOST_TICKS = 500
"""In a report, and so in a pack."""
MOST_TEXT = 8 * 1024 * 1024
"""Bytes of JSON in all packs of a report: as many as one may have that is not packed."""
_MOST_VMS = 5000


@dataclass(frozen=True, slots=True)
class _Head(TickRecord):
    """A tick without its VMs, which are in columns."""

    vms: Annotated[tuple[VmTick, ...], Field(max_length=0)] = ()
    __pydantic_config__: ClassVar = CLOSED  # not by the names of the fields: it is stored as it is


@dataclass(frozen=True, slots=True)
class _VmColumns:
    """The fields of all VMs of all ticks. None: all of them have it, else the places of those that do."""

    vm: tuple[None, tuple[Name, ...]] = (None, ())
    cpu_share: tuple[None, tuple[Share, ...]] = (None, ())
    run_delay_share: tuple[None, tuple[Annotated[float, Field(ge=0)], ...]] = (None, ())
    weight: tuple[None, tuple[Weight | None, ...]] = (None, ())
    mode: tuple[None, tuple[Mode, ...]] = (None, ())
    vcpu: tuple[tuple[Count, ...] | None, tuple[VcpuTick, ...]] = ((), ())
    __pydantic_config__: ClassVar = CLOSED


@dataclass(frozen=True, slots=True)
class _TickColumns:
    """Format 2 of ``manager.model.packed_records``, as an agent may send it."""

    at_us: Annotated[tuple[int, ...], Field(min_length=1, max_length=MOST_TICKS)]
    claimed_us: tuple[None, ...]
    ticks: tuple[_Head, ...]
    counts: tuple[Annotated[int, Field(ge=0, le=_MOST_VMS)], ...]
    vms: _VmColumns
    __pydantic_config__: ClassVar = CLOSED


@dataclass(frozen=True, slots=True)
class TickPack:
    """Ticks of a host of less than a minute, oldest first.

    ``text_bytes``: how long their JSON is; ``shares``: of the newest, by VM, ``cpu_share`` and ``run_delay_share``.
    """

    packed: bytes
    text_bytes: int
    at_us: tuple[int, ...]
    shares: Mapping[str, tuple[float, float]]

    def ticks(self) -> list[TickRecord]:
        """The ticks one by one."""
        return [adapter_of(TickRecord).validate_json(tick.body) for tick in unpack_ticks(self.packed)]


def packs_of(ticks: Sequence[TickRecord]) -> Iterator[str]:
    """Ticks in packs, each as base64, the oldest first. Of several at the same time the last counts."""
    by_time = {microseconds(timestamp(tick.time_s)): tick for tick in ticks}
    for group in within_minutes(sorted(by_time), int):
        packed = pack_tick_fields(group, [json_fields(by_time[at_us]) for at_us in group])
        yield b2a_base64(packed, newline=False).decode()


def read_pack(text: str, most: int = MOST_TEXT) -> TickPack:
    """The inverse, of one pack with at most so many bytes of JSON.

    Raises ValueError for what is none, or has ticks that a report may not have.
    """
    packed = a2b_base64(text, strict_mode=True)
    at_us, plain = tick_text(packed, most)
    try:
        read = adapter_of(_TickColumns).validate_json(plain, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    _must(at_us == [*read.at_us], "its times are there twice")
    _must(all(earlier < later for earlier, later in pairwise(at_us)), "its ticks are not in the order of time")
    _must(at_us[-1] - at_us[0] < MINUTE_US, "its ticks are of a minute or more")
    _must(
        at_us == [microseconds(timestamp(tick.time_s)) for tick in read.ticks], "its times are not those of its ticks"
    )
    _must(len(read.claimed_us) == len(read.counts) == len(at_us), "it has not as many of each column")
    total = sum(read.counts)
    vms = read.vms
    _must(all(len(values) == total for values in _of_all(vms)), f"it has not {total} VMs in each column")
    places, vcpus = vms.vcpu
    _must(len(vcpus) == (total if places is None else len(places)), "it has not as many vCPUs as places of them")
    rising = all(earlier < later for earlier, later in pairwise((-1, *(places or ()), total)))
    _must(rising, f"its places of vCPUs are not below {total}, one after the other")
    last = slice(total - read.counts[-1], total)
    names, used, waited = vms.vm[1][last], vms.cpu_share[1][last], vms.run_delay_share[1][last]
    return TickPack(packed, len(plain), read.at_us, dict(zip(names, zip(used, waited, strict=True), strict=True)))


def _of_all(vms: _VmColumns) -> Iterator[Sequence[object]]:
    return (values for _, values in (vms.vm, vms.cpu_share, vms.run_delay_share, vms.weight, vms.mode))


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
