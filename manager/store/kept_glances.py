"""Glances at applications' latest windows, as hosts' rows keep them: reports renew them, lists read them.

A live report's windows are nowhere else. Of what is stored as rows a glance is kept, too, so that a list need not read
it. What it does not cover is for its reader to find out, see ``manager.store.latest_glances``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.model.glanced_window import PlacedGlance, glance_at, pack_glances, unpack_glances
from manager.model.packed_records import microseconds
from manager.model.window import Window
from manager.store.models import HostRow


class KeptGlance(NamedTuple):
    """A glance in the row of a host."""

    host: str
    placed: PlacedGlance


def glances_at(
    windows: Iterable[tuple[int, datetime, Window]], percentiles: Mapping[int, float], slot_length: timedelta
) -> list[PlacedGlance]:
    """At the latest windows among these, given with the row numbers of applications and the starts of slots.

    ``percentiles``: which one, by row number.
    """
    slots: dict[int, dict[datetime, Window]] = {}
    for number, slot, window in windows:
        of_application = slots.setdefault(number, {})
        other = of_application.get(slot, window)
        of_application[slot] = max(other, window, key=lambda one: (one.histogram.count, one.end_s))
    glances = []
    for number, of_application in slots.items():
        newest = max(of_application)
        latest = [window for slot, window in of_application.items() if slot >= newest - slot_length]
        glances.append(PlacedGlance(number, microseconds(newest), glance_at(latest, percentiles[number])))
    return glances


def renewed(
    kept: bytes | None, glances: Iterable[PlacedGlance], served: Collection[int], slot_length: timedelta
) -> bytes:
    """What a host's row keeps once windows were stored as rows. ``served``: the applications that may stay in it.

    Those of an application of which less came than is kept, but what belongs to the same windows, are left out.
    """
    length_us = slot_length // timedelta(microseconds=1)
    renewed = {glance.number: glance for glance in unpack_glances(kept or b"") if glance.number in served}
    for glance in glances:
        other = renewed.get(glance.number)
        if other is None or _fullness(glance) >= _fullness(other):
            renewed[glance.number] = glance
        elif glance.slot_us >= other.slot_us - length_us:
            del renewed[glance.number]
    return pack_glances(renewed.values())


def _fullness(glance: PlacedGlance) -> tuple[int, float, int]:
    return glance.slot_us, -glance.window.start_s, glance.window.samples


def kept_glances(session: Session) -> dict[int, KeptGlance]:
    """Those of all hosts: by row number, the applications in the row of a single one."""
    glances: dict[int, KeptGlance] = {}
    twice: set[int] = set()
    for host, body in session.execute(select(HostRow.name, HostRow.glances).where(HostRow.glances.is_not(None))):
        for placed in unpack_glances(body or b""):
            if placed.number in glances:
                twice.add(placed.number)
            glances[placed.number] = KeptGlance(host, placed)
    return {number: glance for number, glance in glances.items() if number not in twice}
