"""CPU shares and run-queue delays of VMs, which are new with each report: all of a host in one text, in its row.

So no row of a VM changes because of them. They stand above those in the VM's status, which are as old as it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from manager.store.models import HostRow


class StoredShares(NamedTuple):
    """A VM's share of the host's CPU time and its run-queue delay in seconds per second, as reported ``at``."""

    at: datetime
    used: float
    waited: float

    @property
    def fields(self) -> str:
        """Those of a status, as JSON text. Finite numbers are written as JSON writes them: there are many."""
        return f'"cpu_share":{self.used!r},"run_delay_share":{self.waited!r}'

    def status(self, body: str) -> str:
        """The whole status as JSON text; ``body`` is the one without shares."""
        return f"{{{self.fields},{body[1:]}"


@dataclass(frozen=True, slots=True)
class VmShares:
    """By VM: share of the host's CPU time, run-queue delay in seconds per second, and seconds since the epoch when
    they were reported.
    """

    by_vm: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def newest(self, vm: str, stored: StoredShares) -> StoredShares:
        """The shares of a VM, which are those in the row of its status where nothing newer is known."""
        newer = self.by_vm.get(vm)
        if newer is None:
            return stored
        used, waited, at_s = newer
        return StoredShares(datetime.fromtimestamp(at_s, UTC), used, waited)


def read_shares(text: str | None) -> VmShares:
    """The shares in a row of a host."""
    return VmShares(json.loads(text) if text is not None else {})


def changed_shares(
    host: HostRow, shares: Mapping[str, tuple[float, float]], others: Collection[str], now: datetime
) -> str:
    """The text with shares of VMs of a host, by name. Those of ``others`` stay as they are, all else is forgotten."""
    before = read_shares(host.shares).by_vm if others else {}
    at_s = now.timestamp()
    new = {vm: (used, waited, at_s) for vm, (used, waited) in shares.items()}
    return _text({vm: before[vm] for vm in others if vm in before} | new)


def older_shares(host: HostRow, vms: Collection[str]) -> str:
    """The text without the shares of these VMs: those in their statuses are newer."""
    before = read_shares(host.shares).by_vm
    return _text({vm: shares for vm, shares in before.items() if vm not in vms})


def _text(shares: Mapping[str, Sequence[float]]) -> str:
    return json.dumps(shares, separators=(",", ":"))
