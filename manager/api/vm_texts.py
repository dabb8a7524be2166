"""VMs as JSON: a list of a thousand is made of parts that are known already, and of what each report changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic_core import to_json
from sqlalchemy.orm import Session

from manager.api.kept_texts import KeptTexts
from manager.api.schemas.registration_shapes import VmOut
from manager.model.fields import adapter_of, json_of
from manager.store.revisions import registration_revision
from manager.store.vm_lists import REPORTED, ListedVm, registered_vms, status_texts
from manager.store.vm_use import VmReport, read_use

_MOST = 8192  # VMs, of 1 to 2 KB each
_NOWHERE = b"".join(b',"%b":null' % name.encode() for name in REPORTED) + b"}"

_Registered: TypeAlias = tuple[str, int]
"""A VM and the revision of the registrations."""
_Status: TypeAlias = tuple[str, int | str | None]
"""A VM and the digest of its status."""


class VmTexts:
    """Writes VMs as JSON, and keeps parts of them for the next time. Thread-safe.

    Not for transactions that register: what they see may never come to be.
    """

    def __init__(self) -> None:
        self._registered: KeptTexts[_Registered] = KeptTexts(_MOST)
        self._statuses: KeptTexts[_Status] = KeptTexts(_MOST)

    def of(self, session: Session, vms: Sequence[ListedVm]) -> list[bytes]:
        """These VMs, which were listed in the same transaction, each as a VmOut."""
        revision = registration_revision(session)
        registered = self._registered.of(
            [(vm.name, revision) for vm in vms], lambda unknown: _registered(session, unknown, revision)
        )
        running = [vm for vm in vms if vm.host is not None]
        statuses = self._statuses.of(
            [(vm.name, vm.digest) for vm in running], lambda unknown: _statuses(session, dict(unknown))
        )
        hosts = read_use(session, {vm.host for vm in running if vm.host is not None})

        def reported(vm: ListedVm) -> bytes:
            if vm.host is None:
                return _NOWHERE
            return _reported(hosts[vm.host].of(vm.name, vm.stored), statuses[vm.name, vm.digest])

        return [registered[vm.name, revision] + reported(vm) for vm in vms]


def vm_json(vm: Mapping[str, Any]) -> bytes:
    """A VmOut from a mapping of ``list_vms``. Statuses are stored as JSON, which need not be read and written again."""
    written = adapter_of(VmOut).dump_json(VmOut(**{**vm, "status": None}), by_alias=True, exclude={"status"})
    return b'%b,"status":%b}' % (written[:-1], b"null" if vm["status"] is None else vm["status"].encode())


def _registered(session: Session, vms: Collection[_Registered], revision: int) -> dict[_Registered, bytes]:
    """What is registered of VMs, as the beginning of a VmOut."""
    write, reported = adapter_of(VmOut).dump_json, set(REPORTED)
    found = registered_vms(session, [name for name, _ in vms])
    return {(vm["name"], revision): write(VmOut(**vm), by_alias=True, exclude=reported)[:-1] for vm in found}


def _statuses(session: Session, digests: Mapping[str, int | str | None]) -> dict[_Status, bytes]:
    """Statuses without the shares, as the end of a VmOut's status."""
    return {(vm, digests[vm]): body[1:].encode() for vm, body in status_texts(session, digests).items()}


def _reported(use: VmReport, status: bytes) -> bytes:
    """The rest of a VmOut."""
    host, shares, resources, batch, watts = use
    return b',"status_host":"%b","status_at":%b,"resources":%b,"batch":%b,"power_watts":%b,"status":{%b,%b}' % (
        host.encode(),
        to_json(shares.at),
        b"null" if resources is None else json_of(resources),
        b"null" if batch is None else json_of(batch),
        b"null" if watts is None else to_json(watts),
        shares.fields.encode(),
        status,
    )
