"""The state that all routes of the REST interface share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from manager.control.uptime import Boot
from manager.rate_limit import RateLimit, Turns
from manager.store.arrivals import boot_clock
from manager.store.database import Database
from manager.store.error_budgets import ErrorBudgets
from manager.store.sessions import DEFAULT_LIMITS, SessionLimits
from manager.store.tokens import KnownTokens
from policies.installed import InstalledPolicy

LEAST_REPORT_S = 0.2
"""Agents exchange about once a second: with a shorter interval a host would fall silent between two reports."""


def least_report_s(interval_s: float) -> float:
    """Seconds between two reports of a host with this interval that are waited for."""
    return max(interval_s, LEAST_REPORT_S)


@dataclass(frozen=True, slots=True)
class ManagerContext:
    """Database, installed policies, settings, and clocks: ``clock`` in seconds since the epoch, ``boot`` monotonic.

    ``stale_s``, ``min_samples`` and ``attainment_target`` are the settings of that name; ``slot_s`` is the length
    of a window of response times, ``skew_s`` how far ahead clocks of agents and clients may be (``clock_bound_s``:
    without an event), and ``late_s`` how old posted response times may be. Windows and ticks are kept for
    ``keep_slots``, their roll-ups by minute for ``keep_minutes``. A host without a report for ``silent`` is silent.
    ``requests`` limits the requests of each token and user, ``samples`` the response times that each posts for an
    application, ``tries`` attempts to join or sign in per address, and ``turns`` simultaneous password checks.
    ``tokens``: those that were valid a moment ago.
    ``secure_cookies``: sessions use https only, even if they begin over http.
    """

    database: Database
    policies: Mapping[str, InstalledPolicy]
    stale_s: float
    min_samples: int
    attainment_target: float = 0.99
    slot_s: float = 5.0
    skew_s: float = 60.0
    late_s: float = 300.0
    sessions: SessionLimits = DEFAULT_LIMITS
    secure_cookies: bool = False
    keep_slots: timedelta = timedelta(days=1)
    keep_minutes: timedelta = timedelta(days=30)
    clock_bound_s: float = 1.0
    silent: timedelta = timedelta(seconds=30)
    small_fleet: int = 20
    clock: Callable[[], float] = time.time
    boot: Callable[[], Boot] = field(default_factory=boot_clock)
    requests: RateLimit = field(default_factory=lambda: RateLimit(0))
    samples: RateLimit = field(default_factory=lambda: RateLimit(0))
    tries: RateLimit = field(default_factory=lambda: RateLimit(0))
    turns: Turns = field(default_factory=Turns)
    budgets: ErrorBudgets = field(default_factory=ErrorBudgets)
    tokens: KnownTokens = field(default_factory=KnownTokens)

    def now(self) -> datetime:
        """The current time, in UTC."""
        return datetime.fromtimestamp(self.clock(), UTC)

    @property
    def latest(self) -> datetime:
        """The latest end of response times that count; later ones come from a clock that is ahead."""
        return datetime.fromtimestamp(self.clock() + self.skew_s, UTC)

    @property
    def report_s(self) -> float:
        """Seconds between two reports of a host that are waited for."""
        return least_report_s(self.slot_s)

    @property
    def slot_length(self) -> timedelta:
        """``slot_s`` as a timedelta."""
        return timedelta(seconds=self.slot_s)
