"""Examines a host that is not there. For unit tests only."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from manager.errors import HostError
from manager.model.finding import Finding, FindingStatus

FOUND = Finding("resctrl", "Cache", "resctrl", FindingStatus.WARNING, False, "not mounted", "mount it")


@dataclass
class FakeExaminer:
    """An ``Examiner`` whose looks last until ``going`` is set, and fail once it is closed or is to fail."""

    findings: tuple[Finding, ...] = (FOUND,)
    failing: bool = False
    looks: int = 0
    closed: bool = False
    going: threading.Event = field(default_factory=threading.Event)

    def look(self) -> tuple[Finding, ...]:
        self.looks += 1
        self.going.wait()
        if self.failing or self.closed:
            raise HostError("no doctor is here")
        return self.findings

    def close(self) -> None:
        self.closed = True
        self.going.set()
