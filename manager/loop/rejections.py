"""Tells of what the manager did not accept: counted always, said in an event now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus

from manager.errors import ManagerRefused
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.delivery import Rejected
from manager.model.records import Severity

_AGAIN_S = 600.0
_MOST_NAMED = 3

log = logging.getLogger(__name__)

Say = Callable[[Severity, str, str], None]


class Rejections:
    """Belongs to one thread."""

    def __init__(self, metrics: AgentMetrics, say: Say) -> None:
        self._metrics = metrics
        self._say = say
        self._told_s: float | None = None
        self._second = False

    def unanswered(self, error: Exception) -> None:
        """The manager did not answer, or refuses this agent; that another one serves this host is said once."""
        self._metrics.errors.labels("manager").inc()
        second = isinstance(error, ManagerRefused) and error.status == HTTPStatus.CONFLICT
        if second and not self._second:
            log.error("%s; control goes on with what is known", error)
            self._say(Severity.ERROR, "second-agent", str(error))
        self._second = second
        self._metrics.second.set(second)

    def answered(self) -> None:
        """The manager takes what this agent tells."""
        self._second = False
        self._metrics.second.set(0)

    def tell(self, rejected: Sequence[Rejected], now_s: float) -> None:
        """``now_s`` is monotonic. An event must not be about the one before, which may be refused, too: not often."""
        for one in rejected:
            self._metrics.rejected.labels(one.what.partition("[")[0]).inc()
        if not rejected or (self._told_s is not None and now_s - self._told_s < _AGAIN_S):
            return
        self._told_s = now_s
        named = "; ".join(f"{one.what}: {one.why}" for one in rejected[:_MOST_NAMED])
        more = f"; and {len(rejected) - _MOST_NAMED} more" if len(rejected) > _MOST_NAMED else ""
        text = f"{len(rejected)} items are not accepted, all others are: {named}{more}"
        self._say(Severity.WARNING, "items-refused", text)
