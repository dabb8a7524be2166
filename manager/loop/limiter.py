"""Keeps the loop within the agent's own limits."""

from __future__ import annotations

from manager.control.limit_assignment import Limited, limit_assignment
from manager.loop.planner import Trouble
from manager.model.limits import AgentLimits
from manager.model.registration import Assignment, HostSpec, Mode

LIMITED = "limited"
"""The kind of trouble that a limit makes."""


class Limiter:
    """Remembers what became of an assignment: it is the same for many ticks."""

    def __init__(self, host_name: str, limits: AgentLimits) -> None:
        """``host_name`` is the name the host is registered under."""
        self._released = Assignment(HostSpec(host_name, mode=Mode.RELEASED))
        self.limits = limits
        self._given: Assignment | None = None
        self._limited = Limited(self._released)

    def within(self, assignment: Assignment | None, troubles: list[Trouble]) -> Assignment:
        """What may be carried out of an assignment, the same object for the same; None: nothing. Tells what may not."""
        if assignment is None:
            return self._released
        if assignment is not self._given:
            self._given, self._limited = assignment, limit_assignment(assignment, self.limits)
        troubles.extend(Trouble(LIMITED, text) for text in self._limited.told)
        return self._limited.assignment
