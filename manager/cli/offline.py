"""Undoing without an agent: from the journal and the kernel alone, with neither manager nor libvirtd."""

from __future__ import annotations

from pathlib import Path

from manager.cli.options import JOURNAL_FILE, SIMULATED_FILE, lock_path
from manager.errors import AlreadyRunning, EquipoiseError
from manager.host.kernel_host import KernelHost
from manager.host.registry import HostPaths
from manager.loop.apply import Outcome
from manager.loop.cache_reading import CacheOutcome
from manager.loop.journal import Journal
from manager.loop.lock import HostLock
from manager.loop.observer import LoopSettings
from manager.loop.replicated import replica_of
from manager.loop.reserve import RESERVE_FILE, Reserve
from manager.loop.tick import ControlLoop
from manager.model.records import OutcomeKind
from manager.settings import Settings


def release_offline(settings: Settings, vm: str = "") -> str | None:
    """Put everything, or what was changed of one VM, back and say so.

    None when an agent runs here, or simulates a host: it must then do it.

    Raises EquipoiseError when something could not be put back, or the journal or the host cannot be read.
    """
    if (settings.state_dir / SIMULATED_FILE).exists():
        return None
    try:
        lock = HostLock(lock_path(settings))
    except AlreadyRunning:
        return None
    path = settings.state_dir / JOURNAL_FILE
    try:
        if not (path.exists() or replica_of(path).exists()):
            return f"nothing to restore: there is no journal {path}"
        host = KernelHost(HostPaths(Path(settings.text("root_dir"))), None)
        reserve = path.with_name(RESERVE_FILE)
        journal = Journal(path, host.boot_id, Reserve(reserve) if reserve.exists() else None)
        loop = ControlLoop(host, journal, {}, LoopSettings(settings.text("host_name"), 1.0, 1.0, 1))
        result = loop.release("VM released" if vm else "host released", vm or None)
        outcomes: list[Outcome | CacheOutcome] = [*result.outcomes, *result.cache.outcomes]
        failed = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.FAILED]
        if failed or result.problems:
            reasons = [one.detail for one in failed] + [problem.text for problem in result.problems]
            raise EquipoiseError(f"not everything could be restored: {'; '.join(reasons)}")
        damage = "".join(f"; {one.text}" for one in journal.take_damages())
        restored = sum(outcome.kind is OutcomeKind.RESTORED for outcome in outcomes)
        external = sum(outcome.kind is OutcomeKind.EXTERNAL for outcome in outcomes)
        note = f", {external} externally modified and left alone" if external else ""
        journal.close()
        return f"{restored} settings restored{note}{damage}"
    finally:
        lock.close()
