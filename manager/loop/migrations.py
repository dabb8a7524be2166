"""Migrations that the manager ordered: each begun once, one at a time, watched, reported until the manager knows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from manager.errors import HostError
from manager.host.port import HostPort, MigrationPort
from manager.model.host import VmInstance
from manager.model.knob_spec import Control
from manager.model.limits import LIMITED, AgentLimits
from manager.model.migration import MigrationOrder, MigrationReport, MigrationState
from manager.model.registration import Mode

_REMEMBERED = 100
_RESTARTED = "the agent was restarted meanwhile, and the VM is still on this host"
_NOWHERE = "this host cannot migrate VMs"
_GONE = "VM {vm} does not run on this host"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Attempt:
    """The result of an order so far; ``told``: the manager knows the end."""

    report: MigrationReport
    thread: threading.Thread | None = None
    told: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def set(self, state: MigrationState, copied: float | None = None, detail: str = "") -> None:
        """Report this from now on."""
        with self.lock:
            self.report = replace(self.report, state=state, copied=copied, detail=detail)

    def copied(self, part: float) -> None:
        """So much of the VM's memory was copied."""
        self.set(MigrationState.RUNNING, part)


class Migrations:
    """Carries out orders in a thread of its own: neither a tick nor an exchange waits for libvirt. Thread-safe."""

    def __init__(self, host: HostPort, port: MigrationPort | None, limits: AgentLimits) -> None:
        """``port`` None: nothing can be migrated from this host."""
        self._host, self._port, self._limits = host, port, limits
        self._attempts: dict[int, _Attempt] = {}

    def obey(self, orders: Sequence[MigrationOrder]) -> None:
        """Begin the first order that is new, unless one is under way. Returns at once."""
        for order in orders:
            if self._is_under_way():
                return
            if order.number not in self._attempts:
                self._begin(order)
        while len(self._attempts) > _REMEMBERED:
            self._attempts.pop(min(list(self._attempts)), None)

    def reports(self) -> list[MigrationReport]:
        """What the manager does not know yet."""
        return [attempt.report for attempt in list(self._attempts.values()) if not attempt.told]

    def reported(self, reports: Collection[MigrationReport]) -> None:
        """The manager knows these now."""
        for report in reports:
            attempt = self._attempts.get(report.number)
            if attempt is not None and attempt.report == report:
                attempt.told = report.state is not MigrationState.RUNNING

    @property
    def untold(self) -> bool:
        """Whether one has ended that the manager believes to go on."""
        return any(report.state is not MigrationState.RUNNING for report in self.reports())

    def wait(self, timeout_s: float) -> None:
        """Wait for the migration that is under way, at most so long."""
        for attempt in list(self._attempts.values()):
            if attempt.thread is not None:
                attempt.thread.join(timeout_s)

    def _is_under_way(self) -> bool:
        return any(attempt.report.state is MigrationState.RUNNING for attempt in list(self._attempts.values()))

    def _begin(self, order: MigrationOrder) -> None:
        instance = self._host.running().get(order.libvirt_uuid)
        under_way = order.begun or order.libvirt_uuid in self._host.migrating()
        if order.begun and instance is None:
            return  # it left here: the VM's arrival tells the manager how it ended
        attempt = _Attempt(MigrationReport(order.number, MigrationState.RUNNING))
        self._attempts[order.number] = attempt
        refusal = "" if order.begun else self._refusal(order, instance)
        if refusal or instance is None or self._port is None:
            log.warning("migration %d of VM %s to %s: %s", order.number, order.vm, order.to, refusal or _NOWHERE)
            attempt.set(MigrationState.FAILED, detail=refusal or _NOWHERE)
            return
        log.info(
            "migration %d of VM %s to %s %s", order.number, order.vm, order.to, "goes on" if under_way else "begins"
        )
        act = self._follow if under_way else self._carry_out
        attempt.thread = threading.Thread(
            target=act, args=(order, instance, self._port, attempt), name="migration", daemon=True
        )
        attempt.thread.start()

    def _refusal(self, order: MigrationOrder, instance: VmInstance | None) -> str:
        """Why an order is not carried out; empty: it is."""
        if self._limits.max_mode is not Mode.ENFORCE:
            return f"{LIMITED}: max_mode = {self._limits.max_mode}"
        if Control.MIGRATE not in self._limits.allowed:
            return f"{LIMITED}: {self._limits.how_to_allow(Control.MIGRATE)}"
        if self._port is None:
            return _NOWHERE
        return _GONE.format(vm=order.vm) if instance is None else ""

    def _carry_out(self, order: MigrationOrder, instance: VmInstance, port: MigrationPort, attempt: _Attempt) -> None:
        with self._mistakes(order, attempt):
            try:
                port.migrate(instance, order.to, attempt.copied)
            except HostError as error:
                log.warning("migration %d of VM %s to %s failed: %s", order.number, order.vm, order.to, error)
                attempt.set(MigrationState.FAILED, detail=str(error)[:2000])
            else:
                log.info("migration %d of VM %s to %s is done", order.number, order.vm, order.to)
                attempt.set(MigrationState.DONE, 1.0)

    def _follow(self, order: MigrationOrder, instance: VmInstance, port: MigrationPort, attempt: _Attempt) -> None:
        """Watch what is under way already: an agent before this one began it."""
        with self._mistakes(order, attempt):
            try:
                port.follow(instance, attempt.copied)
            except HostError as error:  # it left here; or it is not known, and the order leads here again
                log.info(
                    "migration %d of VM %s to %s is not watched any more: %s", order.number, order.vm, order.to, error
                )
                self._attempts.pop(order.number, None)
            else:
                log.warning("migration %d of VM %s to %s: %s", order.number, order.vm, order.to, _RESTARTED)
                attempt.set(MigrationState.FAILED, detail=_RESTARTED)

    @contextmanager
    def _mistakes(self, order: MigrationOrder, attempt: _Attempt) -> Iterator[None]:
        """A mistake must not leave the manager in the belief that it goes on."""
        try:
            yield
        except Exception as error:  # whatever it is, the manager learns of it
            log.exception("migration %d of VM %s to %s failed", order.number, order.vm, order.to)
            attempt.set(MigrationState.FAILED, detail=f"a mistake of the agent: {error!r}"[:2000])
