"""Knobs and their values in words, and as records and the journal write them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from manager.model.cpus import format_cpus
from manager.model.knob_spec import KnobValue, Scope
from manager.model.knobs import Knob


def knob_name(knob: str, index: int | str) -> str:
    """What a setting is called wherever one is shown, such as ``CPU weight`` or ``vCPU 1 slice``: alike for no two of a
    VM.
    """
    spec = Knob(knob).spec
    if spec.scope is Scope.DISK:
        index = _disk_shown(int(index))
    return f"{spec.scope} {index} {spec.label}" if spec.scope.numbered else spec.label


def _disk_shown(number: int) -> str:
    """``MAJOR:MINOR``, as makedev(3) of the GNU C library has put them together."""
    major = (number >> 8 & 0xFFF) | (number >> 32 & 0xFFFFF000)
    minor = (number & 0xFF) | (number >> 12 & 0xFFFFFF00)
    return f"{major}:{minor}"


def value_shown(knob: str, text: str) -> str:
    """A value of records and reports as people read it, such as ``9,100`` or ``50,000 us a period``."""
    return Knob(knob).spec.value.shown(text)


def settings_shown(statuses: Iterable[Mapping[str, Any]], knobs: Collection[Knob]) -> list[str]:
    """Such as ``CPU weight: 9,100 (was 100)`` or ``vCPU 0-3 scheduling: fifo 1``, from the ``knobs`` of a VM's status.

    Only what is not as usual, was changed by us, or by another tool; several that are alike together.
    """
    alike: dict[tuple[Knob, str], set[int]] = {}
    for status in statuses:
        knob, value, original = Knob(status["knob"]), status["value"], status["original"]
        if knob in knobs and (original is not None or status["external"] or value != str(knob.spec.value.usual)):
            was = f" (was {value_shown(knob, original)})" if original is not None else ""
            words = value_shown(knob, value) + (" (externally modified)" if status["external"] else was)
            alike.setdefault((knob, words), set()).add(status["index"])
    return [f"{name}: {words}" for (knob, words), on in alike.items() for name in _names(knob, frozenset(on))]


def _names(knob: Knob, indexes: frozenset[int]) -> list[str]:
    """As one where they are counted; disks are not."""
    if knob.spec.scope is Scope.DISK:
        return [knob_name(knob, index) for index in sorted(indexes)]
    return [knob_name(knob, format_cpus(indexes))]


def knob_text(value: KnobValue) -> str:
    """A knob's value as records and the journal write it."""
    return str(value) if isinstance(value, int) else format_cpus(value)


def knob_value(knob: Knob, text: str) -> KnobValue:
    """The inverse of ``knob_text``. Raises ValueError for text of another shape."""
    return knob.spec.value.parse(text)
