"""The manager as a service: an HTTP server that lets requests finish before it ends, and the housekeeping beside it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from datetime import timedelta

from flask import Flask

from manager.api.app import create_app
from manager.api.context import ManagerContext
from manager.serving import HttpServer
from manager.settings import Settings
from manager.store.changes import Changes
from manager.store.database import Database
from manager.store.retention import Retention
from manager.store.rollups import RollUps
from manager.store.sessions import SessionLimits
from policies.registry import InstalledPolicy

Pages = Callable[[Flask, ManagerContext, Changes], None]
"""Adds pages to the application that serves the interface."""


class ManagerServer:
    """The REST interface, served, and the retention of its records."""

    def __init__(self, http: HttpServer, retention: Retention, rollups: RollUps, changes: Changes) -> None:
        self._http = http
        self._changes = changes
        self._retention = retention
        self._rollups = rollups

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens."""
        return self._http.addresses

    def start(self) -> None:
        """Begin; returns at once."""
        # What exists by now stays until the end. Exempt from garbage collection, it is not walked in the middle of some
        # request: that took up to 60 ms.
        gc.collect()
        gc.freeze()
        self._retention.start()
        self._rollups.start()
        self._http.start()

    def close(self) -> None:
        """End, requests being answered first; returns when all is done."""
        self._changes.close()  # or those who follow would keep it from ending
        self._http.close()
        self._retention.close()
        self._rollups.close()


def make_server(
    settings: Settings,
    database: Database,
    policies: Mapping[str, InstalledPolicy],
    add_pages: Pages = lambda _app, _context, _changes: None,
) -> ManagerServer:
    """The manager for a migrated database, listening but not serving yet.

    Raises SettingsError when the address cannot be listened on.
    """
    context = ManagerContext(
        database,
        policies,
        settings.number("stale_s"),
        settings.whole("min_samples"),
        slot_s=settings.number("interval_s"),
        sessions=SessionLimits(
            timedelta(hours=settings.whole("session_hours")), timedelta(minutes=settings.whole("session_idle_min"))
        ),
        secure_cookies=settings.text("secure_cookies") == "always",
        keep_slots=timedelta(days=settings.number("retention_days")),
        keep_minutes=timedelta(days=settings.number("minutes_days")),
    )
    app = create_app(context)
    changes = Changes(database, settings.whole("live_streams"))
    add_pages(app, context, changes)
    http = HttpServer(
        app,
        settings.text("listen_host"),
        settings.whole("listen_port"),
        settings.whole("api_threads") + settings.whole("live_streams"),  # each stream holds one
        settings.text("trusted_proxy"),
    )
    keep_audit = timedelta(days=settings.number("audit_days"))
    retention = Retention(database, context.keep_slots, context.clock, keep_audit)
    keep_hours = timedelta(days=settings.number("hours_days"))
    rollups = RollUps(
        database, context.slot_length, context.min_samples, context.keep_minutes, keep_hours, context.clock
    )
    return ManagerServer(http, retention, rollups, changes)
