"""Whether a host's agent does what it should, in one word."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from manager.model.registration import Mode


class HostHealth(StrEnum):
    """What is wrong with a host by its last report, the worst first.

    ``SLOW``: its last tick took longer than an interval.
    """

    SILENT = "silent"
    NO_LIBVIRT = "no_libvirt"
    ERRORS = "errors"
    SLOW = "slow"
    NEVER_REPORTED = "never_reported"
    HEALTHY = "healthy"


class TickHealth(NamedTuple):
    """What a tick says of its host's health: its errors and length, the connection to libvirt, and the busy share of
    the host's pCPUs. None: there was no tick.
    """

    tick_errors: int | None = None
    tick_ms: float | None = None
    libvirt_connected: bool | None = None
    busy_share: float | None = None


@dataclass(frozen=True, slots=True)
class GlancedHost:
    """A host at a glance: its row number, what lists filter and sort by, and its load.

    ``load``: the busy share of its pCPUs in its last tick; None before there is one.
    """

    number: int
    name: str
    policy: str
    mode: Mode
    health: HostHealth
    load: float | None


def health_of(*, reported: bool, silent: bool, connected: bool, errors: int, slow: bool) -> HostHealth:
    """The worst of what is wrong; ``errors`` are those of the last tick, ``connected`` is to libvirt."""
    if not reported:
        return HostHealth.NEVER_REPORTED
    if silent:
        return HostHealth.SILENT
    if not connected:
        return HostHealth.NO_LIBVIRT
    if errors:
        return HostHealth.ERRORS
    return HostHealth.SLOW if slow else HostHealth.HEALTHY
