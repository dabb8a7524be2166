"""What could not be done in a tick."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from manager.model.records import Severity


class ProblemKind(StrEnum):
    """Kinds of problems, as events, `equipoise_agent_errors_total` and `equipoise plan` name them."""

    READ = "read"
    POLICY = "policy"
    PLACEMENT = "placement"
    SCHEDULING = "scheduling"
    WARP = "warp"
    CACHE = "cache"
    MEMORY = "memory"
    NETWORK = "network"
    LIMITED = "limited"
    JOURNAL = "journal"

    @property
    def severity(self) -> Severity:
        """A warning where nothing else is kept from being done."""
        return Severity.WARNING if self in _MINOR else Severity.ERROR


_MINOR = frozenset(
    {
        ProblemKind.PLACEMENT,
        ProblemKind.SCHEDULING,
        ProblemKind.CACHE,
        ProblemKind.MEMORY,
        ProblemKind.NETWORK,
        ProblemKind.LIMITED,
    }
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something could not be done."""

    kind: ProblemKind
    text: str
