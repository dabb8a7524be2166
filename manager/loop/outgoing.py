"""What an agent has for the manager: kept in the outbox, whatever the disk says."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from manager.errors import JournalError
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.chronicle import new_event
from manager.loop.observer import system_clock
from manager.loop.outbox import Item, Outbox
from manager.model.records import Severity

log = logging.getLogger(__name__)


class Outgoing:
    """Keeps records and events until they are reported."""

    def __init__(self, host_name: str, outbox: Outbox, metrics: AgentMetrics) -> None:
        self._host_name = host_name
        self.outbox = outbox
        self.metrics = metrics
        self._refused = False

    def say(self, severity: Severity, kind: str, message: str) -> None:
        """Tell the operator of something that is not part of a tick."""
        self.keep([new_event(self._host_name, system_clock().epoch_s, severity, kind, message)])

    def keep(self, items: Iterable[Item]) -> None:
        """Keep for the manager. What the disk refuses waits in memory, which is said once: control goes on."""
        try:
            written, refusal = self.outbox.put(items), ""
        except JournalError as error:
            written, refusal = True, str(error)
            self.metrics.errors.labels("outbox").inc()
        if not written or bool(refusal) is self._refused:
            return
        self._refused = bool(refusal)
        if refusal:
            log.error("%s", refusal)
            text = f"{refusal}; what is to be reported waits in memory, and is lost if the agent ends"
            self.say(Severity.ERROR, "outbox", text)
        else:
            log.info("the outbox can be written again")
            self.say(Severity.INFO, "outbox", "the outbox can be written again")
