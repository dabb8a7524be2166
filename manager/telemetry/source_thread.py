"""All sources of one host, run in one thread of their own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any
from weakref import WeakSet

from manager.control.counted_twice import counted_twice
from manager.host.log_file import DEFAULT_LOG_DIRS
from manager.host.taps import of_this_machine
from manager.model.reach import DEFAULT_REACH, Reach
from manager.model.registration import Application, Mode
from manager.model.source import (
    HttpProbe,
    MemcachedProbe,
    NginxFile,
    NginxSyslog,
    PrometheusQuery,
    Push,
    Source,
    SourceStatus,
    Tap,
)
from manager.model.traffic import Answered, HostServices
from manager.model.window import Window
from manager.rate_limit import RateLimit
from manager.telemetry.credentials import Credentials
from manager.telemetry.feed import SILENT_S, Feed, reason_of
from manager.telemetry.follow import follow_file
from manager.telemetry.memcached import probe_memcached
from manager.telemetry.probe import probe_url
from manager.telemetry.prometheus import PrometheusSource
from manager.telemetry.push import PushPages, PushRoute
from manager.telemetry.store import WindowStore
from manager.telemetry.syslog import Routes, SyslogListener, SyslogReceiver, SyslogRoute
from manager.telemetry.tap_reader import FIND_S, MOST_S, TapReader, TapRoute
from manager.telemetry.trust import Strangers, parse_networks, plain_addresses

_NO_TAPS: Mapping[str, frozenset[int]] = MappingProxyType({})
_NOT_FOUND = "the agent does not look for services: its setting find_services is off"
_NICE = -15
_BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_LASTING_S = 60.0
_STOP_S = 5.0

MOST_SOURCES = 1000
"""Sources that this agent runs at the same time, however many it is assigned."""

Key = tuple[str, str]
"""Application and source."""

Work = Callable[[], Coroutine[Any, Any, None]]
"""What a source does until it is cancelled."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    """A source with its counters, and its task once that was started. Log, push and tap sources have none."""

    source: Source
    feed: Feed
    task: asyncio.Task[None] | None = None


class Sources:
    """``Telemetry`` on this machine: probes, logs, queries and pushes.

    ``pages`` is the WSGI application of posts, which its caller serves.
    """

    def __init__(
        self,
        syslog_host: str,
        syslog_port: int,
        on_unknown_address: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        samples_per_s: float = 0.0,
        log_dirs: Sequence[str] = DEFAULT_LOG_DIRS,
        reach: Reach = DEFAULT_REACH,
        credentials: Credentials | None = None,
        push_token: str = "",
    ) -> None:
        """``on_unknown_address`` is called for senders of unknown addresses, at most as ``Strangers`` allows.

        ``clock`` returns seconds since the epoch. ``samples_per_s`` is how many response times an address may send by
        syslog, and how many it may post of an application; 0: any number. Logs may be in the folders ``log_dirs``,
        ``reach`` says what may be connected to, ``credentials`` are those that sources may name, ``push_token`` is that
        of ``PushPages``. Nothing runs before ``start``.
        """
        self._samples_per_s = samples_per_s
        self._log_dirs = tuple(log_dirs)
        self._reach = reach
        self._credentials = credentials or Credentials()
        self._clock = clock
        self._on_unknown_address = on_unknown_address
        self._strangers = Strangers()
        self._store = WindowStore(clock, steady=time.monotonic)
        self._receiver = SyslogReceiver(self._unknown, RateLimit(samples_per_s))
        self._listener = SyslogListener(syslog_host, syslog_port, self._receiver)
        self._listening: asyncio.Task[None] | None = None
        self._taps = TapReader(of_this_machine, clock)
        self._tapping: asyncio.Task[None] | None = None
        self.finds_services = True
        """Whether it looks for services in VMs."""
        self.pages = PushPages(self._unknown, RateLimit(samples_per_s), push_token)
        self._lock = threading.Lock()
        self._configured: object = None
        self._running: dict[Key, _Running] = {}
        self._beyond: dict[Key, Feed] = {}
        self._loop = asyncio.new_event_loop()
        # A task group that is cancelled raises what its tasks fail with at that moment: its cancellation is lost.
        # Task.cancelling() does not tell it either: in Python 3.11 a group whose task fails leaves it above 0, too.
        self._stopped: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Begin to run what is configured."""
        self._thread.start()

    def configure(
        self,
        applications: Sequence[Application],
        slot_s: float,
        addresses: Mapping[str, frozenset[str]],
        taps: Mapping[str, frozenset[int]] = _NO_TAPS,
    ) -> None:
        """Run exactly the sources of these applications; see ``Telemetry``."""
        configured = (tuple(applications), slot_s, dict(addresses), dict(taps))
        with self._lock:
            if configured == self._configured:
                return
            self._configured = configured
            self._store.set_slot_length(slot_s)
            assigned = [
                ((application.name, source.name), source)
                for application in applications
                for source in application.sources
            ]
            sources = dict(assigned[:MOST_SOURCES])
            self._beyond = {key: self._feed(key[0], source) for key, source in assigned[MOST_SOURCES:]}
            for feed in self._beyond.values():
                feed.failing(f"this agent runs at most {MOST_SOURCES} sources, and is assigned {len(assigned)}")
            for key, running in list(self._running.items()):
                if sources.get(key) != running.source:
                    del self._running[key]
                    self._loop.call_soon_threadsafe(self._stop_task, running)
            for key, source in sources.items():
                if key not in self._running:
                    self._running[key] = _Running(source, self._feed(key[0], source))
                    self._loop.call_soon_threadsafe(self._start_task, self._running[key])
            self._route(applications, addresses)
            self._route_taps(applications, taps, slot_s)

    def find_services(self, taps: Mapping[str, frozenset[int]]) -> None:
        """Look for services in these domains; see ``Telemetry``."""
        with self._lock:
            self._taps.find(taps if self.finds_services else {})
            self._loop.call_soon_threadsafe(self._tap)

    def services(self) -> HostServices:
        """The services in VMs, as last read."""
        return self._taps.services if self.finds_services else HostServices(problem=_NOT_FOUND)

    def answered(self) -> Answered:
        """What was answered until now; see ``Telemetry``."""
        return self._taps.answered()

    def slots(self) -> Mapping[str, tuple[Window, ...]]:
        """The slots of the last minutes by application, oldest first."""
        return self._store.slots()

    def recent(self) -> tuple[Window, ...]:
        """The slots that are not closed yet, as they are now."""
        return self._store.recent()

    def closed(self) -> tuple[Window, ...]:
        """The slots that were closed since the last call."""
        return self._store.closed()

    def statuses(self) -> tuple[SourceStatus, ...]:
        """How each source is, by application and name; the detail says what seems to count the same requests."""
        with self._lock:
            feeds = [self._running[key].feed for key in sorted(self._running)]
            feeds += [self._beyond[key] for key in sorted(self._beyond)]
        twice = counted_twice(counts for counts in (feed.counts() for feed in feeds) if counts is not None)
        return tuple(feed.status(twice.get((feed.application, feed.source), "")) for feed in feeds)

    def close(self) -> None:
        """End all sources and the thread (waits a moment for it)."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_S)
        elif not self._loop.is_closed():
            self._loop.close()

    def _feed(self, application: str, source: Source) -> Feed:
        # Prometheus may be asked more rarely than others are silent.
        silent_s = max(SILENT_S, 3 * source.every_s) if isinstance(source, PrometheusQuery) else SILENT_S
        return Feed(application, source.name, source.kind, self._store, self._clock, silent_s)

    def _route(self, applications: Sequence[Application], addresses: Mapping[str, frozenset[str]]) -> None:
        """Set who may send what to which source."""
        syslog: list[SyslogRoute] = []
        push: dict[str, tuple[PushRoute, ...]] = {}
        for application in applications:
            senders = plain_addresses(address for vm in application.vms for address in addresses.get(vm, ()))
            for source in application.sources:
                if (application.name, source.name) in self._beyond:
                    continue
                feed = self._running[application.name, source.name].feed
                if isinstance(source, NginxSyslog):
                    syslog.append(SyslogRoute(source, feed, senders))
                elif isinstance(source, Push):
                    try:
                        route = PushRoute(feed, senders, parse_networks(source.allow))
                    except ValueError as error:
                        feed.failing(f"allow: {error}")
                        continue
                    push[application.name] = (*push.get(application.name, ()), route)
        self._receiver.routes = Routes.of(syslog)
        self.pages.routes = push
        self._loop.call_soon_threadsafe(self._listen, bool(syslog))

    def _route_taps(
        self, applications: Sequence[Application], taps: Mapping[str, frozenset[int]], slot_s: float
    ) -> None:
        """Set which interfaces each tap source is about."""
        routes: list[TapRoute] = []
        for application in applications:
            of_tiers = [
                frozenset[int]().union(*(taps.get(vm, frozenset()) for vm in tier.vms)) for tier in application.tiers
            ]
            sla = application.sla
            late_us, late_share = (sla.response_time_ms * 1000, 1 - sla.percentile / 100) if sla else (None, 0.0)
            released = application.mode is Mode.RELEASED
            for source in application.sources:
                running = self._running.get((application.name, source.name))
                if isinstance(source, Tap) and running is not None:
                    interfaces = of_tiers[0] if source.port is None else frozenset[int]().union(*of_tiers)
                    routes.append(TapRoute(source, running.feed, interfaces, late_us, slot_s, late_share, released))
        self._taps.routes, self._taps.every_s = tuple(routes), min(slot_s, MOST_S) if routes else FIND_S
        self._loop.call_soon_threadsafe(self._tap)

    def _unknown(self, address: str) -> None:
        with self._lock:
            due = self._strangers.should_look(address, time.monotonic())
        if due:
            self._on_unknown_address()

    def _run(self) -> None:
        # On a full host a probe would otherwise measure how long the agent itself waits for a CPU.
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        except OSError as error:
            log.warning("response times include waits of the agent: it may not raise its priority: %s", error.strerror)
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                self._stop(task)
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=_STOP_S / 2))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    # In the loop's thread:

    def _start_task(self, running: _Running) -> None:
        work = self._work(running.source, running.feed)
        if work is not None:
            name = f"{running.feed.application}/{running.source.name}"
            running.task = self._loop.create_task(self._keep_running(name, work, running.feed.failing))

    def _stop_task(self, running: _Running) -> None:
        if running.task is not None:
            self._stop(running.task)

    def _stop(self, task: asyncio.Task[Any]) -> None:
        self._stopped.add(task)
        task.cancel()

    def _listen(self, wanted: bool) -> None:
        if wanted and self._listening is None:
            self._listening = self._loop.create_task(
                self._keep_running("syslog", self._listener.run, self._listener.failing)
            )
        elif not wanted and self._listening is not None:
            self._stop(self._listening)
            self._listening = None

    def _tap(self) -> None:
        wanted = self._taps.wanted
        if wanted and self._tapping is None:
            self._tapping = self._loop.create_task(self._keep_running("taps", self._taps.run, self._taps.failing))
        elif not wanted and self._tapping is not None:
            self._stop(self._tapping)
            self._tapping = None

    def _work(self, source: Source, feed: Feed) -> Work | None:
        """What runs a source; None where response times are sent to it, or read for all of its kind."""
        match source:
            case NginxFile():
                return partial(follow_file, source, feed, self._log_dirs, self._samples_per_s)
            case MemcachedProbe():
                return partial(probe_memcached, source, feed, self._reach)
            case HttpProbe() | PrometheusQuery():
                headers = partial(self._credentials.headers, source.credential, source.url)
                if isinstance(source, HttpProbe):
                    return partial(probe_url, source, feed, self._reach, headers)
                return partial(PrometheusSource(source, feed).run, self._reach, headers)
            case NginxSyslog() | Push() | Tap():
                return None

    async def _keep_running(self, name: str, work: Work, failing: Callable[[str], None]) -> None:
        failures = 0
        while True:
            started_s = self._loop.time()
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - whatever ends a source must not end the others
                reason = reason_of(error)
            else:
                reason = "it ended by itself"
            if asyncio.current_task() in self._stopped:
                return
            if self._loop.time() - started_s > _LASTING_S:
                failures = 0
            failing(reason)
            wait_s = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
            failures += 1
            if failures == 1:
                log.warning("source %s failed: %s", name, reason)
            await asyncio.sleep(wait_s)
