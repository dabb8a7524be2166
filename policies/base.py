"""What a policy is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

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


@runtime_checkable
class RememberingPolicy(Policy, Protocol):
    """One that goes on from what it learnt on this host when the agent starts again, on the same kernel."""

    def keep(self, memory: Memory) -> str:
        """What of its memory is worth keeping, as text: it is written when it is another one. Empty: nothing."""
        ...

    def recall(self, text: str, now_s: float) -> Memory:
        """The memory to go on from. ``text``: what ``keep`` gave; ``now_s``: ``Snapshot.steady_s`` of now.

        What was on trial then was cut off: its setting may be in force. Raises ValueError for what it never wrote.
        """
        ...
