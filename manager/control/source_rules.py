"""Sources of response times: where they run, whether they go together, and their plain form for databases and JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from manager.model.registration import Sla
from manager.model.source import (
    ON_EVERY_HOST,
    UNREGISTERED,
    HttpProbe,
    MemcachedProbe,
    NginxFile,
    NginxSyslog,
    PrometheusQuery,
    Source,
    Tap,
)

_SEEN_AT_TAPS = NginxFile | NginxSyslog | HttpProbe | MemcachedProbe
"""Their requests pass the taps of the same VMs."""


def sources_in_force(sources: tuple[Source, ...], sla: Sla | None, posted: bool) -> tuple[Source, ...]:
    """The registered ``sources``; without any, where there is an SLA and nobody posts response times, UNREGISTERED."""
    return sources or ((UNREGISTERED,) if sla is not None and not posted else ())


def sources_on(
    host: str,
    sources: Iterable[Source],
    hosts: Collection[str],
    named: Collection[str],
    ranks: Mapping[str, int] | None = None,
) -> tuple[Source, ...]:
    """The sources that run on ``host``; ``hosts`` are those that have a VM of the application.

    One that names a host runs there. Of the others, logs and pushed times are taken on every one of ``hosts``; probes
    and queries, which go out and may carry credentials, run on one of those that an operator ``named``, so that no host
    gets them by saying that it has a VM, and that they are not made several times over: the first by name of those
    whose rank is the lowest. ``ranks``: by host, 0 where it is not given.
    """
    first = min(named, key=lambda name: ((ranks or {}).get(name, 0), name), default=None)

    def runs_here(source: Source) -> bool:
        if source.host is not None:
            return source.host == host
        return host in hosts if source.kind in ON_EVERY_HOST else host == first

    return tuple(source for source in sources if runs_here(source))


def contradictions(sources: Sequence[Source], sla: Sla | None) -> list[tuple[str, str]]:
    """What keeps the sources of one application from working together: fields such as ``sources[1].name``, and why."""
    problems: list[tuple[str, str]] = []
    names: set[str] = set()
    tags: set[str | None] = set()
    syslogs = sum(isinstance(source, NginxSyslog) for source in sources)
    for place, source in enumerate(sources):
        field = f"sources[{place}]"
        if source.name in names:
            problems.append((f"{field}.name", f"{source.name!r} names an earlier source, too; use another name"))
        names.add(source.name)
        if isinstance(source, NginxSyslog):
            if syslogs > 1 and (source.tag is None or source.tag in tags):
                why = "no tag" if source.tag is None else f"{source.tag!r}, the tag of an earlier source,"
                text = f"{why} is refused: of several nginx_syslog sources each needs a tag of its own"
                problems.append((f"{field}.tag", text))
            tags.add(source.tag)
        if isinstance(source, Tap):
            problems += [(f"{field}.{name}", text) for name, text in _counted_twice(source, sources[:place], sources)]
        if isinstance(source, PrometheusQuery) and source.percentile is not None:
            refused = f"{source.percentile:g} is refused: percentiles cannot be merged; allowed:"
            if len(sources) > 1:
                text = f"{refused} null and a query of a histogram, or no other source beside this one"
                problems.append((f"{field}.percentile", text))
            if sla is not None and source.percentile != sla.percentile:
                problems.append((f"{field}.percentile", f"{refused} the SLA's percentile, {sla.percentile:g}"))
    return problems


def _counted_twice(tap: Tap, earlier: Sequence[Source], sources: Sequence[Source]) -> list[tuple[str, str]]:
    """Which other source would count the requests of a tap again: a field of the tap, and why."""
    ports = [source.port for source in earlier if isinstance(source, Tap)]
    if tap.port in ports and tap.port is not None:
        return [("port", f"{tap.port} is the port of an earlier source: its requests would count twice")]
    if ports and None in (*ports, tap.port):
        shown = "null" if tap.port is None else f"{tap.port}"
        text = f"{shown} is refused beside another tap of any port: requests would count twice; give each its port"
        return [("port", text)]
    again = next((source for source in sources if isinstance(source, _SEEN_AT_TAPS)), None)
    if again is None:
        return []
    return [("type", f"tap is refused beside {again.kind}: requests would count twice; keep one of the two")]
