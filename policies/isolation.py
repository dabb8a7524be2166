"""`isolation`: as `fair`, but an application above its agreed request rate pays for it alone.

Blagodurov et al., "Maximizing server utilization while meeting critical SLAs via weight-based collocation management",
IM 2013, section V.C.
"""

from __future__ import annotations

from dataclasses import dataclass

from manager.model.decision import Decision, Memory, Snapshot
from manager.model.registration import Sharing
from policies.feedback import decide


@dataclass(frozen=True, slots=True)
class Isolation:
    """Weights driven by measured response times; see ``policies.feedback``."""

    name: str = "isolation"
    summary: str = "Feedback as `fair`, but an application above its agreed rate gets the least weight of critical VMs."

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        """A weight for every managed VM; nothing where the host has no weights."""
        return decide(self.name, Sharing.ISOLATION, snapshot, memory)


POLICY = Isolation()
