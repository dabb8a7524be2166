"""Cache ways and memory bandwidth as resctrl has them: masks, what a host offers, schemata, and what is asked for.

Source: Documentation/filesystems/resctrl.rst. Every number comes from the folder ``info``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field

from manager.model.warp import AUTO


@dataclass(frozen=True, slots=True)
class Mask:
    """A set of cache ways: bit N of ``bits`` is way N. Raises ValueError for a negative number."""

    bits: int

    def __post_init__(self) -> None:
        if self.bits < 0:
            raise ValueError(f"a mask is not negative: {self.bits}")

    @classmethod
    def span(cls, first: int, ways: int) -> Mask:
        """``ways`` ways from way ``first`` on."""
        return cls(((1 << ways) - 1) << first)

    @classmethod
    def parse(cls, text: str) -> Mask:
        """Read hexadecimal digits, as the kernel prints them. Raises ValueError."""
        if not re.fullmatch(r"\s*[0-9a-fA-F]+\s*", text):
            raise ValueError(f"{text!r} is not a hexadecimal mask")
        return cls(int(text, 16))

    def __str__(self) -> str:
        return f"{self.bits:x}"

    def __bool__(self) -> bool:
        return bool(self.bits)

    def __or__(self, other: Mask) -> Mask:
        return Mask(self.bits | other.bits)

    def __and__(self, other: Mask) -> Mask:
        return Mask(self.bits & other.bits)

    def __sub__(self, other: Mask) -> Mask:
        return Mask(self.bits & ~other.bits)

    def __le__(self, other: Mask) -> bool:
        """Whether every way of this is in the other."""
        return not self - other

    @property
    def ways(self) -> int:
        """How many there are."""
        return self.bits.bit_count()

    @property
    def lowest(self) -> int:
        """The lowest way, -1 of an empty mask."""
        return (self.bits & -self.bits).bit_length() - 1

    @property
    def contiguous(self) -> bool:
        """Whether the ways are one run; so is an empty mask."""
        return len(list(self.runs())) <= 1

    def disjoint(self, other: Mask) -> bool:
        """Whether no way is in both."""
        return not self & other

    def runs(self) -> Iterator[Mask]:
        """The runs of neighbouring ways, from the lowest on."""
        rest = self
        while rest:
            filled = rest.bits + (rest.bits & -rest.bits)  # carries through the lowest run
            run = Mask(rest.bits & ~filled)
            yield run
            rest -= run


EMPTY = Mask(0)


def union(masks: Iterable[Mask]) -> Mask:
    """All ways that are in any of them."""
    found = EMPTY
    for mask in masks:
        found |= mask
    return found


class Slot(NamedTuple):
    """One setting of a group: a resource as schemata name it (``L3``, ``L3DATA``, ``MB``), and the id of a domain."""

    resource: str
    domain: int


Schemata = Mapping[Slot, int]
"""The bits of a mask for caches; for memory the number in the resource's own unit."""


@dataclass(frozen=True, slots=True)
class CacheResource:
    """A cache that can be divided, in every domain alike.

    ``minimum``: the fewest neighbouring ways of a mask, at least 1 though AMD's kernel says 0. ``shareable``: ways that
    other hardware, such as I/O, uses too. ``sparse``: masks may have gaps. ``way_bytes``: size of a way by domain,
    without those of which the kernel does not tell it.
    """

    name: str
    ways: Mask
    minimum: int
    shareable: Mask
    closids: int
    sparse: bool
    domains: tuple[int, ...]
    way_bytes: tuple[tuple[int, int], ...] = ()

    @property
    def level(self) -> int:
        """3 for ``L3``, ``L3DATA`` and ``L3CODE``."""
        return int(self.name[1])

    @property
    def shared_below(self) -> bool:
        """Whether the ways that other hardware uses are in the lower half."""
        return self.shareable.lowest + self.shareable.bits.bit_length() < self.ways.ways and bool(self.shareable)

    @property
    def unshared(self) -> Mask:
        """The ways on that side of these on which there are more."""
        shared = self.shareable.bits
        if not shared:
            return self.ways
        above = self.ways - Mask.span(0, shared.bit_length())
        return above if self.shared_below else Mask.span(0, self.shareable.lowest)

    def problem(self, mask: Mask) -> str:
        """Why the kernel, or we, would refuse a mask; empty where it is legal (cbm_validate, fs/resctrl)."""
        if not mask or not mask <= self.ways:
            return f"mask {mask} is not within {self.ways}"
        if not self.sparse and not mask.contiguous:
            return f"mask {mask} has gaps"
        if next(mask.runs()).ways < self.minimum:
            return f"mask {mask} has fewer than {self.minimum} neighbouring ways"
        return ""

    def fit(self, ways: int, free: Mask) -> Mask | None:
        """A legal mask of so many ways among ``free``, the lowest there is; None where there is none.

        It has gaps only where masks may and no run of free ways is long enough.
        """
        runs = [run for run in (free & self.ways).runs() if run.ways >= self.minimum]
        wanted = max(ways, self.minimum)
        for run in runs:
            if run.ways >= wanted:
                return Mask.span(run.lowest, wanted)
        if not self.sparse:
            return None
        found = EMPTY
        for run in runs:
            found |= Mask.span(run.lowest, min(run.ways, wanted - found.ways))
        return found if found.ways == wanted else None


class BandwidthUnit(StrEnum):
    """What a number of a memory resource is: percent of the most, eighths of a GB/s (AMD), or MB/s (mba_MBps)."""

    PERCENT = "percent"
    EIGHTH_GBPS = "eighth_gbps"
    MBPS = "mbps"

    def in_words(self, value: int) -> str:
        """Such as ``30 %``."""
        if self is BandwidthUnit.EIGHTH_GBPS:
            return f"{value / 8:g} GB/s"
        return f"{value} {'%' if self is BandwidthUnit.PERCENT else 'MB/s'}"


@dataclass(frozen=True, slots=True)
class BandwidthResource:
    """Memory bandwidth that can be limited, in every domain alike; ``least``, ``step`` and ``most`` in ``unit``.

    ``linear``: a number limits in proportion. ``throttle``: thread_throttle_mode, empty where the kernel has none.
    """

    name: str
    least: int
    step: int
    most: int
    unit: BandwidthUnit
    linear: bool
    closids: int
    domains: tuple[int, ...]
    throttle: str = ""

    def legal(self, value: int) -> int:
        """What the kernel makes of a number: within the range and rounded up to a step (bw_validate, fs/resctrl)."""
        step = max(self.step, 1)
        return min(ceil(max(value, self.least, 1) / step) * step, self.most)


@dataclass(frozen=True, slots=True)
class Monitoring:
    """What the L3 measures of a group: the names of event files, and how many groups can be distinguished."""

    features: frozenset[str]
    rmids: int


@dataclass(frozen=True, slots=True)
class Resctrl:
    """What one mount of resctrl offers. ``monitoring`` None: nothing is measured, so no cause can be named."""

    caches: tuple[CacheResource, ...]
    bandwidths: tuple[BandwidthResource, ...]
    monitoring: Monitoring | None = None

    @property
    def closids(self) -> int:
        """How many groups there can be, the default group among them: the fewest of all resources."""
        caches = [one.closids for one in self.caches]
        return min(caches + [one.closids for one in self.bandwidths], default=0)

    @property
    def divided(self) -> tuple[CacheResource, ...]:
        """The outermost cache: one resource, or with CDP two, of data and of code, which get the same masks."""
        level = max((cache.level for cache in self.caches), default=0)
        return tuple(cache for cache in self.caches if cache.level == level)


DEFAULT = ""
"""Name of the default group, the root of the tree: it holds every task that nobody put elsewhere."""
PREFIX = "equipoise-"
"""Groups whose names begin so are ours; any other but the default group is of another tool: counted and left alone."""


def is_ours(group: str) -> bool:
    """Whether we made a group of that name."""
    return group.startswith(PREFIX)


def monitoring_group(group: str, vm: str) -> str:
    """The path of a VM's monitoring group inside its control group."""
    return f"{group}/mon_groups/{PREFIX}{vm}".lstrip("/")


@dataclass(frozen=True, slots=True)
class Group:
    """A control group as it is. ``exclusive``: the kernel lets no other group have its ways."""

    name: str
    values: Schemata
    exclusive: bool = False

    @property
    def of_others(self) -> bool:
        """Whether another tool made it."""
        return self.name != DEFAULT and not is_ours(self.name)


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What one domain measures of a group's tasks; None what it has not, or not now.

    ``occupancy_bytes`` of the cache; bytes read and written since the group was made: ``total_bytes`` from all memory,
    ``local_bytes`` from the domain's own.
    """

    domain: int
    occupancy_bytes: int | None = None
    total_bytes: int | None = None
    local_bytes: int | None = None


def parse_schemata(text: str) -> dict[Slot, int]:
    """Read a file ``schemata``: masks of caches, decimal numbers of anything else.

    A resource that is not set up yet (``uninitialized``) is left out. Raises ValueError naming the line.
    """
    found: dict[Slot, int] = {}
    for line in text.splitlines():
        name, colon, values = (part.strip() for part in line.partition(":"))
        if values == "uninitialized":
            continue
        for part in values.split(";"):
            domain, equals, value = (piece.strip() for piece in part.partition("="))
            try:
                if not colon or not name or not equals:
                    raise ValueError
                found[Slot(name, int(domain))] = Mask.parse(value).bits if is_cache(name) else int(value)
            except ValueError as error:
                raise ValueError(f"{line!r} is not RESOURCE:DOMAIN=VALUE;…") from error
    return found


def parse_sizes(text: str) -> dict[Slot, int]:
    """Read a file ``size``: bytes by domain, all numbers decimal. Raises ValueError naming the line."""
    found: dict[Slot, int] = {}
    for line in text.splitlines():
        name, _, values = line.partition(":")
        try:
            for part in values.split(";"):
                domain, _, value = part.partition("=")
                found[Slot(name.strip(), int(domain))] = int(value)
        except ValueError as error:
            raise ValueError(f"{line!r} is not RESOURCE:DOMAIN=BYTES;…") from error
    return found


def format_schemata(values: Schemata) -> str:
    """Write lines for a file ``schemata``, sorted, each with its newline; what is not named keeps its value."""
    lines: dict[str, list[str]] = {}
    for slot in sorted(values):
        value = f"{values[slot]:x}" if is_cache(slot.resource) else str(values[slot])
        lines.setdefault(slot.resource, []).append(f"{slot.domain}={value}")
    return "".join(f"{name}:{';'.join(parts)}\n" for name, parts in lines.items())


def is_cache(resource: str) -> bool:
    """Whether a resource is a cache, of which values are masks."""
    return re.fullmatch(r"L\d(DATA|CODE)?", resource) is not None


class SizeUnit(StrEnum):
    """How a part of the cache is asked for."""

    PERCENT = "percent"
    WAYS = "ways"
    BYTES = "bytes"


_SCALE = {"%": SizeUnit.PERCENT, "ways": SizeUnit.WAYS, "way": SizeUnit.WAYS}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(%|ways?|B|KiB|MiB|GiB)")


@dataclass(frozen=True, slots=True)
class CacheSize:
    """A part of the cache in each domain; ``amount`` is above 0, at most 100 in percent, and whole in ways."""

    amount: Fraction
    unit: SizeUnit

    def __post_init__(self) -> None:
        if self.amount <= 0 or (self.unit is SizeUnit.PERCENT and self.amount > 100):
            raise ValueError(f"{self.amount} {self.unit} is no part of a cache")
        if self.unit is SizeUnit.WAYS and self.amount.denominator != 1:
            raise ValueError(f"{self.amount} is no whole number of ways")

    def ways_of(self, cache: CacheResource, domain: int) -> int:
        """Ways of a domain that hold at least so much: rounded up, never below the minimum nor above all of them.

        Raises ValueError for bytes where the size of a way is not known.
        """
        if self.unit is SizeUnit.WAYS:
            wanted = self.amount
        elif self.unit is SizeUnit.PERCENT:
            wanted = self.amount * cache.ways.ways / 100
        else:
            way_bytes = dict(cache.way_bytes).get(domain, 0)
            if way_bytes <= 0:
                raise ValueError(f"the size of a way of {cache.name} in domain {domain} is not known: ask in ways")
            wanted = self.amount / way_bytes
        return min(max(ceil(wanted), cache.minimum), cache.ways.ways)

    def resolve(self, cache: CacheResource) -> dict[int, Mask]:
        """The lowest legal mask of that size by domain. Raises ValueError as ``ways_of``, and where none is legal."""
        masks = {domain: cache.fit(self.ways_of(cache, domain), cache.ways) for domain in cache.domains}
        if None in masks.values():
            raise ValueError(f"{cache.name} has no {self.amount} {self.unit} in one piece")
        return {domain: mask for domain, mask in masks.items() if mask is not None}


CacheWish = CacheSize | Literal["auto"]
"""``auto``: an equal part at first, then as response times say."""


def parse_wish(text: str) -> CacheWish:
    """Read ``auto``, ``40%``, ``6 ways`` or ``5MiB``. Raises ValueError."""
    if text == AUTO:
        return AUTO
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is neither auto nor a size such as 40%, 6 ways or 5MiB")
    amount, unit = Fraction(match[1]), match[2]
    return CacheSize(amount * _BYTES.get(unit, 1), _SCALE.get(unit, SizeUnit.BYTES))


def _asks_for_cache(text: str) -> str:
    parse_wish(text)
    return text


CachePart = Annotated[
    str,
    Field(max_length=40, description="auto, or a part of the cache such as 40%, 6 ways or 5MiB"),
    AfterValidator(_asks_for_cache),
]
