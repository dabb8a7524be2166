"""The manager's scheduled jobs."""

from __future__ import annotations

from datetime import timedelta

from manager.api.balance_job import Balancer
from manager.api.context import ManagerContext
from manager.api.interference_job import InterferenceTables
from manager.settings import Settings
from manager.store.arrivals import Arrivals
from manager.store.day_partitions import make_days
from manager.store.jobs import Job, Run
from manager.store.proposals import busy_hosts, close_proposals
from manager.store.retention import Cleanup, Keep, prune, prune_access
from manager.store.rollups import RollUps
from manager.store.silent_hosts import SilenceWatch
from manager.store.tick_rollups import TickRollUps
from manager.store.tick_spans import join_ticks
from manager.store.window_packs import pack_old

_HOUR_S, _MINUTE_S = 3600.0, 60.0


def make_jobs(settings: Settings, context: ManagerContext) -> tuple[Job, ...]:
    """All scheduled jobs of a manager."""
    database = context.database
    records, audit = (timedelta(days=settings.number(name)) for name in ("retention_days", "audit_days"))
    keep = Keep(context.keep_slots, context.keep_minutes, timedelta(days=settings.number("hours_days")))
    rollups = RollUps(database, context.slot_length, context.min_samples, keep)
    ticks = TickRollUps(database, keep)
    silence = SilenceWatch(context.silent)
    balancer, interference = Balancer(context), InterferenceTables(context)
    arrived = Arrivals(database, context.clock, context.boot)

    def cleanup(run: Run) -> Cleanup:
        return Cleanup(database, run.now, arrived, run.rested)

    def retain(run: Run) -> int:
        made = make_days(database, run.now)
        return made + prune(cleanup(run), records) + prune_access(cleanup(run), audit)

    def roll_up(run: Run) -> int:
        rolled = rollups.roll_up(run.now, run.rested)
        return rolled + pack_old(cleanup(run)) + rollups.forget(cleanup(run))

    def roll_up_ticks(run: Run) -> int:
        return ticks.roll_up(run.rested) + join_ticks(cleanup(run)) + ticks.forget(cleanup(run))

    def watch(run: Run) -> int:
        return silence.look(database, run.now, run.since)

    def close_migrations(run: Run) -> int:
        with database.reading() as session:
            if not busy_hosts(session):
                return 0
        with database.writing() as session:
            return close_proposals(session, run.now, run.since)

    return (
        Job("retention", _HOUR_S, retain),
        Job("rollups", _MINUTE_S, roll_up),
        Job("tick-rollups", _MINUTE_S, roll_up_ticks),
        Job("silent-hosts", context.report_s, watch),
        Job("migrations", context.report_s, close_migrations),
        Job("balance", _MINUTE_S, balancer.look),
        Job("interference", _MINUTE_S, interference.look),
    )
