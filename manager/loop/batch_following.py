"""How batch VMs fare, looked at while ticks go on: they need not be in each short interval."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from manager.control.batch_progress import (
    FOLLOW_S,
    Account,
    BatchProgress,
    CpuUsed,
    accounts_text,
    follow,
    read_accounts,
)
from manager.loop.rates import rates
from manager.loop.reading import Reading
from manager.model.decision import Snapshot, VmView
from manager.model.records import News
from manager.model.registration import VmClass, VmSpec

log = logging.getLogger(__name__)


class BatchFollowing:
    """The progress of a host's batch VMs, and since when the work of their jobs counts."""

    def __init__(self) -> None:
        self.progress = BatchProgress()
        self._accounts_read = False
        self._specs: Mapping[str, VmSpec] = {}
        self._before: Reading | None = None
        self._settled = False
        self._noted: tuple[BatchProgress, tuple[News, ...]] = self.progress, ()

    @property
    def notes(self) -> tuple[News, ...]:
        """What an operator should know of them: made once for each look."""
        if self._noted[0] is not self.progress:
            self._noted = self.progress, self.progress.notes
        return self._noted[1]

    @property
    def jobs(self) -> str | None:
        """Since when work counts, for the next start of the agent; None: as it was noted before."""
        return accounts_text(self.progress.accounts) if self._accounts_read else None

    def forget(self) -> None:
        """Nothing is decided any more; what work is done still counts."""
        self.progress, self._before = BatchProgress(accounts=self.progress.accounts), None

    def has_job(self, vm: str, noted: str) -> bool:
        """Whether a VM's work is counted; ``noted`` as in ``look``."""
        self._recall(noted)
        return vm in self.progress.accounts

    def lost(self, vm: str, cpu_s: float) -> None:
        """So much of the CPU time of a VM with a job is in no counter any more; the work stays done."""
        account = self.progress.accounts[vm]
        moved = replace(account, begun_cpu_s=account.begun_cpu_s - cpu_s)
        self.progress = replace(self.progress, accounts={**self.progress.accounts, vm: moved})

    def _recall(self, noted: str) -> None:
        if not self._accounts_read:
            self._accounts_read = True
            self.progress = BatchProgress(accounts=_accounts(noted))

    def look(self, snapshot: Snapshot, specs: Mapping[str, VmSpec], reading: Reading, noted: str) -> BatchProgress:
        """How they fare now, or did up to FOLLOW_S ago.

        ``specs`` are the managed VMs by domain UUID, ``noted`` is what an agent before this one left of ``jobs``.
        Where these change it is looked at once, and again in the next interval, which is the first of a new VM.
        """
        self._recall(noted)
        before, interval_s = self._before, snapshot.interval_s
        same = specs == self._specs
        if before is not None:
            interval_s = reading.monotonic_s - before.monotonic_s
            settled = same and self._settled
            if interval_s <= 0 or (settled and interval_s < FOLLOW_S - snapshot.interval_s / 2):
                return self.progress
        self._before, self._specs, self._settled = reading, specs, same
        pcpus = len(snapshot.capabilities.online_cpus)
        domains = {spec.name: domain for domain, spec in specs.items() if spec.vm_class is VmClass.BATCH}
        used: dict[str, CpuUsed] = {}
        views: list[VmView] = []
        for view in snapshot.vms:
            domain = domains.get(view.name)
            state = None if domain is None else reading.states.get(domain)
            if domain is not None and state is not None:
                used[view.name] = CpuUsed(state.instance, reading.counters[domain].cpu_ns / 1e9)
                views.append(view.with_rates(*rates(domain, reading, before, pcpus)))
        self.progress = follow(replace(snapshot, vms=tuple(views), interval_s=interval_s), used, self.progress)
        return self.progress


def _accounts(text: str) -> Mapping[str, Account]:
    """Since when work counts, as an agent before this one noted it."""
    try:
        return read_accounts(text)
    except (ValueError, TypeError, KeyError) as error:
        log.warning("the work of batch VMs counts anew: what was noted is not understood: %s", error)
        return {}
