"""How the kernel reads what is written to resctrl: parse_line, cbm_validate, bw_validate and rdtgroup_tasks_write."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator

from manager.model.cache import BandwidthResource, CacheResource, Mask, Slot
from manager.model.cpus import CpuSet, parse_cpus

_ULONG = 1 << 64
_BAD_CPUS = "Bad CPU list/mask\n"
_CPUS = 8
_BLANKS = " \t\n\v\f\r"


class Refused(Exception):
    """A command that the kernel refuses, with what it adds to last_cmd_status."""

    def __init__(self, status: str, number: int = errno.EINVAL) -> None:
        super().__init__(status)
        self.status = status
        self.errno = number


def parse_number(text: str, base: int, limit: int = _ULONG) -> int | None:
    """kstrtoul: digits with one newline after them at most, base 0 by the prefix; None for anything else."""
    match = re.fullmatch(r"\+?(0[xX])?([0-9a-fA-F]+)\n?", text)
    if match is None or (match[1] and base == 10):
        return None
    found = base or (16 if match[1] else 8 if match[2].startswith("0") else 10)
    try:
        number = int(match[2], found)
    except ValueError:
        return None
    return number if number < limit else None


def parse_tasks(text: str) -> Iterator[int]:
    """The thread ids of a list with commas, each before the next is looked at."""
    rest: str | None = text
    while rest and rest[0] != "\n":
        part, comma, after = rest.partition(",")
        part = part.strip(_BLANKS)
        negative = part.startswith("-")
        pid = parse_number(part.removeprefix("-"), 0, 1 << 31)
        if pid is None:
            raise Refused(f"Task list parsing error pid {part}\n")
        if negative:
            raise Refused(f"Invalid pid {-pid}\n")
        yield pid
        rest = after if comma else None


def parse_cpu_mask(text: str) -> CpuSet:
    """A mask of CPUs, of which the kernel was built for few."""
    bits = parse_number(text.strip(), 16)
    if bits is None:
        raise Refused(_BAD_CPUS)
    if bits >= 1 << _CPUS:
        raise Refused(_BAD_CPUS, errno.EOVERFLOW)
    return frozenset(cpu for cpu in range(_CPUS) if bits >> cpu & 1)


def parse_cpu_list(text: str) -> CpuSet:
    """A list of CPUs."""
    try:
        cpus = parse_cpus(text)
    except ValueError as error:
        raise Refused(_BAD_CPUS) from error
    if cpus and max(cpus) >= _CPUS:
        raise Refused(_BAD_CPUS, errno.ERANGE)
    return cpus


def stage(
    resource: Callable[[str], CacheResource | BandwidthResource | None],
    domains: Callable[[Slot], bool],
    overlaps: Callable[[Slot, Mask, bool], bool],
    text: str,
    *,
    exclusive: bool,
) -> dict[Slot, int]:
    """The values of all lines, of which none counts if one is refused.

    ``overlaps`` tells whether a mask meets that of another group, of an exclusive one only or of any.
    """
    staged: dict[Slot, int] = {}
    for line in text.split("\n"):
        name, colon, values = line.partition(":")
        name = name.strip(_BLANKS)
        if not colon:
            raise Refused("Missing ':'\n")
        if not values:
            raise Refused(f"Missing '{name}' value\n")
        found = resource(name)
        if found is None:
            raise Refused(f"Unknown or unsupported resource name '{name}'\n")
        while values:
            part, _, values = values.partition(";")
            number, equals, value = part.partition("=")
            domain = parse_number(number, 10)
            if not equals or domain is None:
                raise Refused("Missing '=' or non-numeric domain\n")
            slot = Slot(name, domain)
            if not domains(slot):
                raise Refused("")
            if slot in staged:
                raise Refused(f"Duplicate domain {domain}\n")
            value = value.strip(_BLANKS)
            if isinstance(found, BandwidthResource):
                staged[slot] = _bandwidth(found, value)
                continue
            staged[slot] = _mask(found, value)
            mask = Mask(staged[slot])
            if overlaps(slot, mask, True):
                raise Refused("Overlaps with exclusive group\n")
            if exclusive and overlaps(slot, mask, False):
                raise Refused("Overlaps with other group\n")
    return staged


def _mask(cache: CacheResource, text: str) -> int:
    bits = parse_number(text, 16)
    if bits is None:
        raise Refused(f"Non-hex character in the mask {text}\n")
    if bits == 0 or bits > cache.ways.bits:
        raise Refused("Mask out of range\n")
    if not cache.sparse and not Mask(bits).contiguous:
        raise Refused(f"The mask {bits:x} has non-consecutive 1-bits\n")
    if next(Mask(bits).runs()).ways < cache.minimum:
        raise Refused(f"Need at least {cache.minimum} bits in the mask\n")
    return bits


def _bandwidth(resource: BandwidthResource, text: str) -> int:
    value = parse_number(text, 10, 1 << 32)
    if value is None:
        raise Refused(f"Invalid {resource.name} value {text}\n")
    if not resource.least <= value <= resource.most:
        raise Refused(f"{resource.name} value {value} out of range [{resource.least},{resource.most}]\n")
    return -(-value // resource.step) * resource.step
