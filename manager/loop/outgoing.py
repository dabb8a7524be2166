"""All that an agent has for the manager: kept in the outbox, whatever the disk says."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from http import HTTPStatus

from manager.errors import JournalError, ManagerRefused
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.chronicle import new_event
from manager.loop.delivery import Rejected
from manager.loop.observer import system_clock
from manager.loop.outbox import PART_ITEMS, Item, Outbox
from manager.model.records import Event, Severity

_AGAIN_S = 600.0
_MOST_NAMED = 3

log = logging.getLogger(__name__)


class Outgoing:
    """Keeps records and events until they are reported, and reports what the manager does not accept.

    ``urgent``: an event waits, which the manager is to get with the next exchange.
    """

    def __init__(self, host_name: str, outbox: Outbox, metrics: AgentMetrics) -> None:
        self._host_name = host_name
        self.outbox = outbox
        self.metrics = metrics
        self._disk_refuses = False
        self._rejected_s: float | None = None
        self._second = False
        self.urgent = False

    @property
    def is_much(self) -> bool:
        """Whether more waits than one report holds."""
        return self.outbox.waiting > PART_ITEMS

    def waited_s(self, now_s: float) -> float:
        """For how long it has waited where that is much, by the clocks of then and now; ``now_s``: since the epoch."""
        try:
            oldest_s = self.outbox.oldest_s() if self.is_much else None
        except JournalError:  # it will be said when it is reported
            return 0.0
        return max(now_s - oldest_s, 0.0) if oldest_s is not None else 0.0

    def say(self, severity: Severity, kind: str, message: str) -> None:
        """Report an event that is not part of a tick."""
        self.keep([new_event(self._host_name, system_clock().epoch_s, severity, kind, message)])

    def keep(self, items: Iterable[Item]) -> None:
        """Keep for the manager. What the disk refuses waits in memory, which is reported once: control goes on."""
        kept = list(items)
        try:
            written, refusal = self.outbox.put(kept), ""
        except JournalError as error:
            written, refusal = True, str(error)
            self.metrics.errors.labels("outbox").inc()
        self.urgent = self.urgent or any(isinstance(item, Event) for item in kept)
        if not written or bool(refusal) is self._disk_refuses:
            return
        self._disk_refuses = bool(refusal)
        if refusal:
            log.error("%s", refusal)
            text = f"{refusal}; what is to be reported waits in memory, and is lost if the agent ends"
            self.say(Severity.ERROR, "outbox", text)
        else:
            log.info("the outbox can be written again")
            self.say(Severity.INFO, "outbox", "the outbox can be written again")

    def unanswered(self, error: Exception) -> None:
        """The manager did not answer, or refuses this agent; that another one serves this host is reported once."""
        self.metrics.errors.labels("manager").inc()
        second = isinstance(error, ManagerRefused) and error.status == HTTPStatus.CONFLICT
        if second and not self._second:
            log.error("%s; control goes on with the last assignment", error)
            self.say(Severity.ERROR, "second-agent", str(error))
        self._second = second
        self.metrics.second.set(second)

    def answered(self) -> None:
        """The manager takes this agent's reports."""
        self._second = False
        self.metrics.second.set(0)

    def reject(self, rejected: Sequence[Rejected], now_s: float) -> None:
        """Count what the manager did not accept, and report it now and then: that event may be refused, too.

        ``now_s`` is monotonic.
        """
        for item in rejected:
            self.metrics.rejected.labels(item.what.partition("[")[0]).inc()
        if not rejected or (self._rejected_s is not None and now_s - self._rejected_s < _AGAIN_S):
            return
        self._rejected_s = now_s
        named = "; ".join(f"{item.what}: {item.why}" for item in rejected[:_MOST_NAMED])
        more = f"; and {len(rejected) - _MOST_NAMED} more" if len(rejected) > _MOST_NAMED else ""
        text = f"{len(rejected)} items are not accepted, all others are: {named}{more}"
        self.say(Severity.WARNING, "items-refused", text)
