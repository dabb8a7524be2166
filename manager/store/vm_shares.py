"""CPU shares and run-queue delays of VMs, which are new with each report: all of a host in one text, in its row.

So no row of a VM changes because of them. They stand above those in the VM's status, which are as old as it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from manager.store.models import HostRow


@dataclass(frozen=True, slots=True)
class VmShares:
    """By VM: share of the host's CPU time, run-queue delay in seconds per second, and seconds since the epoch when
    they were reported.
    """

    by_vm: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def status(self, vm: str, at: datetime, used: float, waited: float, body: str) -> tuple[datetime, str]:
        """When a VM's status was reported, and the whole of it as JSON text, from the columns of its row."""
        if vm in self.by_vm:
            used, waited, at_s = self.by_vm[vm]
            at = datetime.fromtimestamp(at_s, UTC)
        # Finite numbers are written as JSON writes them: there are many.
        return at, f'{{"cpu_share":{used!r},"run_delay_share":{waited!r},{body[1:]}'

    def used(self, vm: str, used: float) -> float:
        """The share of the host's CPU time that a VM used, from the column of its row where nothing newer is known."""
        return self.by_vm[vm][0] if vm in self.by_vm else used


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
