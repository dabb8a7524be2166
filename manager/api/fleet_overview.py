"""The state of every host and application, for lists that show a few of them.

To sort by state, or to count states, is to know all of them: of a host its last tick's errors, of an application its
latest window. In a fleet above ``small_fleet`` hosts that is read at most twice an interval by a manager process, less
often where it takes long, and whenever something was registered; of a smaller one for each request. Who asks while what
was read is a little old gets it, and it is read anew meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from manager.api.context import ManagerContext
from manager.control.fleet_groups import WORST_FIRST, ApplicationGroup
from manager.control.sla import sla_state, watched_percentile
from manager.errors import Busy, DatabaseUnavailable
from manager.model.glanced_window import GlancedWindow
from manager.model.host_health import GlancedHost
from manager.model.registration import Sla
from manager.model.window import SlaState
from manager.store.application_glances import GlancedApplication, hosts_of, list_applications
from manager.store.host_glances import count_hosts, read_glances
from manager.store.latest_glances import latest_glances
from manager.store.revisions import registration_revision

_FRESH, _OLD = 0.5, 1.5
"""Intervals: for the first an overview is not read anew; until the second it is shown while the next one is read."""
_RESTS = 4.0
"""Nor is it for so many times as long as it took: a manager that is busy, so that it takes long, has better to do."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApplicationGlance:
    """An application with its latest window."""

    application: GlancedApplication
    state: SlaState
    window: GlancedWindow | None

    @property
    def measured_ms(self) -> float | None:
        """The percentile of its SLA."""
        return self.window.value_ms if self.window else None

    @property
    def number(self) -> int:
        """The application's row number."""
        return self.application.number

    @property
    def sla(self) -> Sla | None:
        """The application's SLA."""
        return self.application.sla

    @property
    def rate_rps(self) -> float | None:
        """Requests per second."""
        return self.window.rate_rps if self.window else None

    def place(self, sort: str) -> tuple[float | str, ...]:
        """Its sort key; unknown values are last."""
        name = self.application.name
        if sort == "name":
            return (name,)
        if sort == "rate":
            rate = self.rate_rps
            return (1.0 if rate is None else -rate, name)
        used = self.measured_ms / self.sla.response_time_ms if self.measured_ms is not None and self.sla else -1.0
        return (-used, name) if sort == "used" else (WORST_FIRST.index(self.state), -used, name)


@dataclass(frozen=True, slots=True)
class Overview:
    """All hosts, by name, and applications, the worst first, as they were ``read_s`` on the steady clock."""

    read_s: float
    took_s: float
    revision: int
    hosts: tuple[GlancedHost, ...]
    applications: tuple[ApplicationGlance, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Where applications run, by row number, and the policies of hosts, by name, as of an overview."""

    seen: Overview
    hosts: Mapping[int, Sequence[str]]
    policies: Mapping[str, str]

    def groups_of(self, glance: ApplicationGlance, group: ApplicationGroup) -> Sequence[str]:
        """The groups that an application is in, one for each of its hosts, say; none: it has no value."""
        mode, hosts = glance.application.mode, self.hosts.get(glance.number, ())
        if group == "state":
            return (str(glance.state),)
        if group == "mode":
            return (str(mode),) if mode else ()
        return hosts if group == "host" else sorted({self.policies[host] for host in hosts if host in self.policies})


class FleetOverview:
    """Reads overviews, and keeps the last one. Thread-safe: without one, or with an old one, who asks waits for it."""

    def __init__(self, context: ManagerContext, steady: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._steady = steady
        self._lock = threading.Lock()
        self._last: Overview | None = None
        self._renewing = False
        self._places: Places | None = None
        self._registered: tuple[int, Sequence[GlancedApplication]] | None = None

    def of(self, session: Session) -> Overview:
        """The state of all, at most one and a half intervals old."""
        revision = registration_revision(session)
        if count_hosts(session) <= self._context.small_fleet:
            return self._read(session, revision)
        with self._lock:
            last = self._last
            if last is None or last.revision != revision or self._rested(last, _OLD):
                self._last = last = self._read(session, revision)
            elif self._rested(last, _FRESH) and not self._renewing:
                self._renewing = True
                threading.Thread(target=self._renew, name="fleet-overview", daemon=True).start()
            return last

    def _rested(self, overview: Overview, intervals: float) -> bool:
        """Whether it is that old, and may be read anew by how long it took."""
        slot_s = self._context.slot_s
        longer_s = max(_RESTS * overview.took_s - _FRESH * slot_s, 0.0)
        return self._steady() - overview.read_s > intervals * slot_s + longer_s

    def _renew(self) -> None:
        try:
            with self._context.database.reading() as session:
                read = self._read(session, registration_revision(session))
            with self._lock:
                if self._last is None or self._last.read_s < read.read_s:
                    self._last = read
        except (Busy, DatabaseUnavailable) as error:  # who asks next waits for it, and gets the error
            log.debug("the overview of the fleet is not renewed: %s", error)
        finally:
            self._renewing = False

    def places(self, session: Session, seen: Overview, group: ApplicationGroup) -> Places:
        """What tells the groups of applications: where they run, which is read once for each overview that is kept."""
        if group in {"state", "mode"}:
            return Places(seen, {}, {})
        with self._lock:
            places = self._places
            if places is None or places.seen is not seen:
                policies = {host.name: host.policy for host in seen.hosts}
                self._places = places = Places(seen, hosts_of(session), policies)
            return places

    def _read(self, session: Session, revision: int) -> Overview:
        begun_s = self._steady()
        hosts = read_glances(session, self._context.slot_s)
        read_s, applications = self._steady(), self._look(session, revision)
        return Overview(read_s, self._steady() - begun_s, revision, tuple(hosts), applications)

    def _applications(self, session: Session, revision: int) -> Sequence[GlancedApplication]:
        """All applications, which are read again once anything was registered."""
        known = self._registered
        if known is None or known[0] != revision:
            self._registered = known = revision, list_applications(session)
        return known[1]

    def _look(self, session: Session, revision: int) -> tuple[ApplicationGlance, ...]:
        context, applications = self._context, self._applications(session, revision)
        percentiles = {application.number: watched_percentile(application.sla) for application in applications}
        latest = latest_glances(session, percentiles, context.slot_length, context.latest)
        glances = []
        for application in applications:
            window = latest.get(application.number)
            state = sla_state(window, application.sla, context.clock(), context.stale_s, context.min_samples)
            glances.append(ApplicationGlance(application, state, window))
        return tuple(sorted(glances, key=lambda glance: glance.place("worst")))
