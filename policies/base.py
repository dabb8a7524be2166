"""What a policy is."""

from __future__ import annotations

from typing import Protocol

from manager.model.decision import Decision, Memory, Snapshot


class Policy(Protocol):
    """A pure function with a name. Equal snapshots and memories must give equal decisions."""

    @property
    def name(self) -> str:
        """The name operators set it by: lower-case letters, digits and dashes."""
        ...

    @property
    def summary(self) -> str:
        """One sentence for operators."""
        ...

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        """What every managed VM is to have now. ``memory`` is what the previous decision carried, None at first."""
        ...
