"""`fair`: weights from response times, so that applications miss their SLAs as rarely and as alike as can be.

Blagodurov et al., "Maximizing server utilization while meeting critical SLAs via weight-based collocation management",
IM 2013, section V.B.
"""

from __future__ import annotations

from dataclasses import dataclass

from manager.model.decision import Decision, Memory, Snapshot
from manager.model.registration import Sharing
from policies.feedback import decide


@dataclass(frozen=True, slots=True)
class Fair:
    """Weights driven by measured response times; see ``policies.feedback``."""

    name: str = "fair"
    summary: str = "Feedback: an application that is nearer to missing its SLA gets more weight, whatever its load."

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        """A weight for every managed VM; nothing where the host has no weights."""
        return decide(self.name, Sharing.FAIR, snapshot, memory)


POLICY = Fair()
