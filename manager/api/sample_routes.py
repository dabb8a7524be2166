"""Response times of applications: samples, windows and sources."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import itemgetter

from flask import g, request
from werkzeug.exceptions import Forbidden, UnsupportedMediaType

from manager.api.auth import OPERATOR_OR_MACHINES, VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup
from manager.api.paging import NAME, TIME, Page, part, read_cursor
from manager.api.queries import NamePath, PageQuery, WindowQuery
from manager.api.schemas.registration_shapes import SourceOut, WindowOut
from manager.api.validation import read_json, read_lines, shown
from manager.control.source_rules import sources_in_force
from manager.errors import InvalidRequest, TooManyRequests
from manager.model.fields import adapter_of, timestamp
from manager.model.histogram import Histogram, bucket_of
from manager.model.numbers import digits
from manager.model.source import ON_EVERY_HOST, SourceStatus
from manager.model.window import MAX_COUNT, Window
from manager.protocol.samples import SampleLine, SamplesIn, SamplesOut
from manager.store.applications import application_with_past
from manager.store.models import ApplicationRow
from manager.store.registrations import get
from manager.store.serving_hosts import hosts_to_register, named_hosts, served_until
from manager.store.source_rows import source_statuses, sources_of
from manager.store.watched_hosts import look_at
from manager.store.windows import POSTED_LATELY, add_samples, list_windows, posted_to, slot_start

_DEFAULT_INTERVAL = timedelta(seconds=1)
_MAX_LINES = 100_000
_BYTES_PER_TIME = 64
_NDJSON = "application/x-ndjson"
_MOST_NAMED = 20  # VMs in one problem of a source


def samples_api(context: ManagerContext) -> RouteGroup:
    """The routes of response times."""
    api = RouteGroup("response times", "Response times: samples, windows and sources.")
    database = context.database
    lines = {
        "type": "array",
        "items": api.reference(SampleLine),
        "maxItems": _MAX_LINES,
        "description": "the objects one per line, without brackets and commas",
    }
    content = {"application/json": api.reference(SamplesIn), _NDJSON: lines}

    @api.at("POST /applications/<name>/samples", OPERATOR_OR_MACHINES, content=content)
    def post_samples(path: NamePath) -> SamplesOut:
        """Add response times: samples, counts by histogram bucket, or both. Late ones are counted but not stored.

        A host's token may send for applications that have a VM or a source on the host, a source's token for its own.
        """
        _refuse_strangers(context, path.name)
        source = (path.name, g.principal.kind, g.principal.name)
        _refuse_flood(context, source)
        body = request.get_data(cache=False)
        context.samples.take(source, len(body) // _BYTES_PER_TIME)  # reading an invalid body takes time, too
        if request.is_json:
            batch = read_json(SamplesIn, body)
            context.samples.take(source, len(batch.times_ms) + len(batch.buckets))
            windows, late = _one_interval(path.name, batch, context)
        elif request.mimetype == _NDJSON:
            lines = read_lines(SampleLine, body, _MAX_LINES)
            context.samples.take(source, len(lines))
            windows, late = _by_slot(path.name, lines, context)
        else:
            raise UnsupportedMediaType(f"send the body as application/json or {_NDJSON}")
        with database.writing() as session:
            add_samples(session, path.name, windows, context.slot_length)
        return SamplesOut(accepted=sum(window.histogram.count for window in windows), late=late)

    @api.at("GET /applications/<name>/windows", VIEWER)
    def get_windows(path: NamePath, query: WindowQuery) -> Page[WindowOut]:
        """The windows of an application, newest first. Windows in the future, from a clock ahead, need `until`.

        Asking for the newest has its hosts report all in each interval for a minute, see `small_fleet`.
        """
        before = min(filter(None, (read_cursor(query, TIME), query.until or context.latest)))
        with database.reading() as session:
            application = application_with_past(session, path.name)
            windows = list_windows(session, application, query.since, before, query.limit + 1)
        if query.until is None:
            look_at(database, context.now(), applications=[path.name])
        return part(Page[WindowOut], query, windows, itemgetter(0), lambda slot: window_out(slot[1], query.buckets))

    @api.at("GET /applications/<name>/sources", VIEWER)
    def get_sources(path: NamePath, query: PageQuery) -> Page[SourceOut]:
        """The status of each source of an application on each host that runs it."""
        after = read_cursor(query, NAME)
        with database.reading() as session:
            application = get(session, ApplicationRow, path.name)
            posted = bool(posted_to(session, [application.id], context.now() - POSTED_LATELY))
            in_force = sources_in_force(sources_of(application), application.sla, posted)
            registered = {source.name: source for source in in_force}
            statuses = source_statuses(session, application)
            named = named_hosts(session, {application.id: application.name}, context.now())[application.name]
            vms_without_host = [] if named else hosts_to_register(session, application)
        rows = [
            SourceOut(
                source=source,
                type=registered[source].kind,
                host=host,
                at=at,
                status=adapter_of(SourceStatus).validate_json(body),
            )
            for source, host, at, body in statuses
            if source in registered
        ]
        for name in registered.keys() - {row.source for row in rows}:
            source = registered[name]
            text = "" if source.host or source.kind in ON_EVERY_HOST else _no_host(vms_without_host)
            rows.append(SourceOut(source=name, type=source.kind, host=None, at=None, status=None, problem=text))
        rows = [row for row in sorted(rows, key=_source_place) if after is None or _source_place(row) > after]
        return part(Page[SourceOut], query, rows, _source_place)

    return api


def _no_host(vms: Sequence[str]) -> str:
    """The problem of a probe or query whose VMs are registered for no host; empty: no problem."""
    if not vms:
        return ""
    rest = len(vms[_MOST_NAMED:])
    named = ", ".join(vms[:_MOST_NAMED]) + (f" and {rest} more" if rest else "")
    return f"no host is registered for VM {named}: set its host, or that of the source"


def _refuse_strangers(context: ManagerContext, application: str) -> None:
    """Raises Forbidden for a host that does not serve the application, NotFound if that does not exist."""
    host = g.principal.host
    if host is None:
        return
    with context.database.reading() as session:
        number = get(session, ApplicationRow, application).id
        served = served_until(session, host, [number]).get(number, context.now()) is None
    if not served:
        raise Forbidden(f"application {application} has neither a VM nor a source on host {host}")


def _refuse_flood(context: ManagerContext, source: tuple[str, str, str]) -> None:
    """Raises TooManyRequests while a source exceeds its rate of response times."""
    wait_s = context.samples.wait_s(source)
    if wait_s:
        limit = f"{digits(context.samples.per_s, 4)} per second and source on average"
        raise TooManyRequests(f"too many response times; allowed: {limit}", wait_s)


def window_out(window: Window, with_buckets: bool = False) -> WindowOut:
    """A window as answered; on demand with its histogram, or the percentile in place of it."""
    return WindowOut(
        start=timestamp(window.start_s),
        end=timestamp(window.end_s),
        count=window.histogram.count,
        requests=window.requests,
        rate_rps=window.rate_rps,
        p50_ms=window.percentile_ms(50),
        p95_ms=window.percentile_ms(95),
        p99_ms=window.percentile_ms(99),
        buckets=dict(window.histogram.buckets) if with_buckets else None,
        ready=window.ready if with_buckets else None,
    )


def _source_place(row: SourceOut) -> str:
    return f"{row.source} {row.host or ''}"


def _one_interval(application: str, body: SamplesIn, context: ManagerContext) -> tuple[list[Window], int]:
    """The window of a request, none if it is late; and the number of late samples."""
    histogram = Histogram.of(time_ms * 1000 for time_ms in body.times_ms).merge(Histogram(body.buckets))
    count = histogram.count
    if count > MAX_COUNT:
        raise InvalidRequest("buckets", f"{count} response times are refused; allowed: {MAX_COUNT} in all")
    now = context.now()
    end = body.end or now
    start = body.start or end - _DEFAULT_INTERVAL
    _refuse_future("end", end, now, context)
    if start > end:
        raise InvalidRequest("start", f"{shown(start)} is refused; allowed: at most the end, {end}")
    if _is_late(end, now, context):
        return [], count
    requests = count if body.requests is None else body.requests
    return [Window(application, start.timestamp(), end.timestamp(), histogram, requests)], 0


def _by_slot(application: str, lines: Sequence[SampleLine], context: ManagerContext) -> tuple[list[Window], int]:
    """A window for each slot with samples, and the number of late samples.

    A window covers its slot from the begin until now, as clients send each sample when the request ends.
    """
    now = context.now()
    slots: dict[datetime, dict[int, int]] = {}
    late = 0
    for place, line in enumerate(lines):
        end = line.end or now
        _refuse_future(f"lines[{place}].end", end, now, context)
        if _is_late(end, now, context):
            late += 1
            continue
        buckets = slots.setdefault(slot_start(end, context.slot_length), {})
        bucket = bucket_of(line.time_ms * 1000)
        buckets[bucket] = buckets.get(bucket, 0) + 1
    windows = []
    for start, buckets in sorted(slots.items()):
        end = min(start + context.slot_length, max(now, start + timedelta(microseconds=1)))
        histogram = Histogram(buckets)
        windows.append(Window(application, start.timestamp(), end.timestamp(), histogram, histogram.count))
    return windows, late


def _refuse_future(field: str, end: datetime, now: datetime, context: ManagerContext) -> None:
    if end > now + timedelta(seconds=context.skew_s):
        # It would stay the latest window until that time.
        raise InvalidRequest(field, f"{shown(end)} is refused; allowed: at most {context.skew_s:g} s after {now}")


def _is_late(end: datetime, now: datetime, context: ManagerContext) -> bool:
    return end < now - timedelta(seconds=context.late_s)
