"""Whether a VM that a host reports is that host's to report."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

SETTLES = timedelta(minutes=1)
"""How long two hosts may report a VM, and a host may act on an older registration."""


class Foul(StrEnum):
    """Why a host may not speak of a VM."""

    REGISTERED_ELSEWHERE = "registered_elsewhere"
    OTHER_UUID = "other_uuid"
    RUNS_ELSEWHERE = "runs_elsewhere"


@dataclass(frozen=True, slots=True)
class RegisteredVm:
    """What an operator said of a VM: its host and its domain's UUID, None: nothing."""

    host: str | None
    uuid: str | None


@dataclass(frozen=True, slots=True)
class HeldVm:
    """A VM as reported by the host that has it: its domain's UUID, and whether that migrates to another host."""

    uuid: str
    migrating: bool

    def migrates_to(self, uuids: Collection[str]) -> bool:
        """Whether a host with these domains may be the destination: only the host that has the VM can say so."""
        return self.migrating and self.uuid in uuids


def is_alarm(why: Foul, changed_at: datetime, claimed_at: datetime, now: datetime) -> bool:
    """Whether a refused VM is worth an event: not while a host may not know yet what changed.

    ``changed_at``: when the VM's registration changed. ``claimed_at``: since when the host has reported the VM without
    being the destination of its migration; a short one may be over before the host that the VM leaves has said so.
    """
    changes = (changed_at, claimed_at) if why is Foul.RUNS_ELSEWHERE else (changed_at,)
    return all(abs(now - change) >= SETTLES for change in changes)


def foul(registered: RegisteredVm, host: str, uuid: str, holder: str | None) -> Foul | None:
    """Why ``host`` may not report this VM as its domain ``uuid``; None: it may.

    ``holder`` is another host that reports the VM and still answers, None: there is none. What was registered decides;
    where that names no host, the first that reports the VM has it until it says that the VM is gone, or falls silent:
    so a VM that migrates is shown on the host that it came from until it has left there.
    """
    if registered.host is not None and registered.host != host:
        return Foul.REGISTERED_ELSEWHERE
    if registered.uuid is not None and registered.uuid != uuid:
        return Foul.OTHER_UUID
    if registered.host is None and holder is not None:
        return Foul.RUNS_ELSEWHERE
    return None


def claim_text(
    why: Foul, vm: str, host: str, other: str | None, registered: RegisteredVm, uuid: str, held: HeldVm | None
) -> str:
    """The text of the event, and what to do. ``held`` is the VM as the host ``other`` reports it."""
    if why is Foul.REGISTERED_ELSEWHERE:
        return (
            f"{host} reports VM {vm}, which is registered for host {registered.host}: nothing of it was taken. If the"
            f" VM moved, register it for {host}; else its agent, or its token, is not to be trusted"
        )
    if why is Foul.OTHER_UUID:
        return (
            f"{host} reports VM {vm} as domain {uuid}, which is registered as domain {registered.uuid}: nothing of it"
            " was taken. Correct libvirt_uuid if the VM was made anew"
        )
    if held is not None and held.uuid == uuid:
        return (
            f"{host} and {other} both report VM {vm}, as the same domain {uuid}, and {other} reports no migration: it"
            f" is shown on {other}, which reported it first. Find out where it runs, and register its host; if it does"
            f" not run on {host}, the agent there, or its token, is not to be trusted"
        )
    return (
        f"{host} and {other} both report VM {vm}, which is registered for no host: it is shown on {other}, which"
        " reported it first. Register its host, or its libvirt_uuid where two domains have the same name"
    )
