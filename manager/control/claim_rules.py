"""Whether a VM that a host reports is that host's to report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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


def claim_text(why: Foul, vm: str, host: str, other: str | None, registered: RegisteredVm, uuid: str) -> str:
    """The text of the event, and what to do."""
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
    return (
        f"{host} and {other} both report VM {vm}, which is registered for no host: it is shown on {other}, which"
        " reported it first. Register its host, or its libvirt_uuid where two domains have the same name"
    )
