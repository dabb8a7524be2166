"""Live reports that need no more than one statement: of a host that nobody else has to do with, see Two planes."""

from __future__ import annotations

from datetime import datetime, timedelta

from manager.api.acceptance import Accepted
from manager.api.assignments import Assignments
from manager.api.cadences import Cadences
from manager.api.context import ManagerContext
from manager.control.tenure_rules import Who
from manager.model.fields import timestamp
from manager.model.glanced_window import pack_glances
from manager.protocol.assignment import ReportOut
from manager.protocol.report import ReportIn
from manager.store.kept_glances import glances_at
from manager.store.live_plane import LiveReport, packed_for_row, store_live
from manager.store.windows import POSTED_LATELY, slot_start

_ALLOWED = frozenset({"agent_version", "tick", "windows", "live", "wants_slots", "vms_changed_only"})
"""What a live report has; one with anything else changes more than the host's row."""
_ABSENT = {
    name: field.get_default(call_default_factory=True)
    for name, field in ReportIn.model_fields.items()
    if name not in _ALLOWED
}
"""All else, as it is where a report does not have it."""


class LiveReports:
    """Takes the live reports that can be taken so. Thread-safe."""

    def __init__(self, context: ManagerContext, assignments: Assignments, cadences: Cadences) -> None:
        self._context, self.assignments, self.cadences = context, assignments, cadences

    def take(
        self,
        host: str,
        accepted: Accepted,
        agent: Who | None,
        taps: bool,
        ahead_s: float | None,
        now: datetime,
        token: str | None,
    ) -> tuple[ReportOut, int] | None:
        """Store a report; the answer, and the revision of the assignment. None: nothing was stored.

        ``ahead_s``: by how much the agent measured its clock to be ahead, None: unknown. ``token`` as for
        ``store_live``. Raises DatabaseUnavailable.
        """
        body, context = accepted.body, self._context
        cadence, settled = self.cadences.known(), self.assignments.settled(host, taps)
        if cadence is None or settled is None or body.tick is None or not _is_live(accepted):
            return None
        if abs(ahead_s or 0.0) > context.clock_bound_s:
            return None
        ends = [timestamp(window.end_s) for window in body.windows]
        latest = now + timedelta(seconds=context.skew_s)
        if any(end > latest for end in ends) or any(one.application not in settled.numbers for one in body.windows):
            return None
        windows = [
            (settled.numbers[window.application], slot_start(end, context.slot_length), window)
            for window, end in zip(body.windows, ends, strict=True)
        ]
        measured = {number for number, _, _ in windows}
        report = LiveReport(
            host,
            agent,
            body.agent_version,
            ahead_s,
            body.tick.model_dump_json(),
            body.tick.health,
            packed_for_row(windows),
            pack_glances(glances_at(windows, settled.percentiles, context.slot_length)) if windows else None,
            settled.revision,
            measured,
            frozenset(settled.numbers.values()) - measured,
        )
        if not store_live(context.database, report, now, now - POSTED_LATELY, token):
            return None
        answer = ReportOut(
            stored_decisions=0,
            stored_events=0,
            stored_ticks=0,
            stored_windows=len(windows),
            slots=settled.slots,
            migrations=list(settled.orders),
            cadence=cadence,
            packed=True,
            packed_ticks=True,
        )
        return answer, settled.revision


def _is_live(accepted: Accepted) -> bool:
    """Whether a report says what is so now, and nothing else."""
    body = accepted.body
    more = any(getattr(body, name) != absent for name, absent in _ABSENT.items())
    return body.live and body.wants_slots and not accepted.refused and not more
