"""Scenario files: TOML, described in docs/how-to/simulator.md; some come with Equipoise."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from importlib import resources
from pathlib import Path

from manager.errors import SettingsError
from manager.model.cache import BandwidthUnit, CacheSize, SizeUnit, parse_wish
from manager.model.fields import bounds_of
from manager.model.law import Law
from manager.model.registration import Sharing, Sla
from manager.sim.scenario import (
    AppSpec,
    BatchSpec,
    CacheSpec,
    Constant,
    Fault,
    FaultKind,
    MemoryUse,
    MissCurve,
    Noise,
    Ramp,
    SampleRoute,
    Scenario,
    Scheduler,
    Segment,
    ServiceTime,
    Shape,
    Sine,
    TierSpec,
)
from manager.sim.toml_fields import Fields

_SUFFIX = ".toml"
_LONGEST_S = 1e7
_FASTEST_RPS = 1e5
_ON_APPLICATIONS = frozenset({FaultKind.SOURCE_SILENT})
_ON_VMS = frozenset({FaultKind.VM_RESTART, FaultKind.WRITE_ERROR, FaultKind.READ_ERROR})


def shipped() -> tuple[str, ...]:
    """Names of the scenarios that come with Equipoise."""
    folder = resources.files("manager.sim") / "scenarios"
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in folder.iterdir() if file.name.endswith(_SUFFIX)))


def load_scenario(name: str) -> Scenario:
    """A shipped scenario by its name, or one in a file. Raises SettingsError saying what is wrong where."""
    if name in shipped():
        text = (resources.files("manager.sim") / "scenarios" / (name + _SUFFIX)).read_text()
        return parse_scenario(text, name)
    path = Path(name)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"scenario {name!r} is neither one of {', '.join(shipped())} nor a file that can be read: {error}"
        ) from error
    return parse_scenario(text, path.stem)


def parse_scenario(text: str, name: str) -> Scenario:
    """A scenario from the text of a file. Raises SettingsError naming field, value and range."""
    try:
        return _scenario(Fields(tomllib.loads(text)), name)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"scenario {name}: not TOML: {error}") from error
    except SettingsError as error:
        raise SettingsError(f"scenario {name}: {error}") from error


def _scenario(fields: Fields, name: str) -> Scenario:
    noise, scheduler, law = fields.table("noise"), fields.table("scheduler"), fields.table("law")
    cache = fields.table("cache")
    usual = Scenario("", 1, ())
    scenario = Scenario(
        name=name,
        summary=fields.text("summary", ""),
        pcpus=fields.whole("pcpus", 1, 256),
        cgroup=fields.whole("cgroup", 1, 2, usual.cgroup),
        interval_s=fields.number("interval_s", 0.2, 300, usual.interval_s),
        duration_s=fields.number("duration_s", 1, _LONGEST_S, usual.duration_s),
        settle_s=fields.number("settle_s", 0, _LONGEST_S, usual.settle_s),
        seed=fields.whole("seed", 0, 2**63, usual.seed),
        pinning=fields.flag("pinning", usual.pinning),
        applications=tuple(_application(table) for table in fields.tables("applications", least=1)),
        batch=tuple(_batch(table) for table in fields.tables("batch")),
        faults=tuple(_fault(table) for table in fields.tables("faults")),
        law=Law() if law is None else _law(law),
        noise=None if noise is None else _noise(noise),
        scheduler=Scheduler() if scheduler is None else _scheduler(scheduler),
        cache=None if cache is None else _cache(cache),
    )
    memories = [tier.memory for app in scenario.applications for tier in app.tiers]
    if scenario.cache is None and any([*memories, *(one.memory for one in scenario.batch)]):
        raise fields.refuse("cache", "a table where VMs have one named memory")
    _check_names(scenario, fields)
    fields.close()
    return scenario


def _application(fields: Fields) -> AppSpec:
    max_rate = fields.number("max_rate_rps", 1e-6, 1e9) if fields.has("max_rate_rps") else None
    app = AppSpec(
        name=fields.name("name"),
        sla=Sla(
            fields.number("response_time_ms", 1e-3, 100_000), fields.number("percentile", 1, 99.99, 95.0), max_rate
        ),
        tiers=tuple(_tier(table) for table in fields.tables("tiers", least=1)),
        load=tuple(_segment(table) for table in fields.tables("load", least=1)),
        sharing=fields.choice("sharing", Sharing) if fields.has("sharing") else None,
        timeout_s=fields.number("timeout_s", 0.001, 1000, 30.0),
        route=fields.choice("source", SampleRoute, SampleRoute.LOCAL),
        cache=_wish(fields),
    )
    fields.close()
    return app


def _tier(fields: Fields) -> TierSpec:
    name = fields.name("name")
    vms, vcpus = fields.whole("vms", 1, 100, 1), fields.whole("vcpus", 1, 256, 1)
    shape = fields.choice("service", Shape, Shape.EXPONENTIAL)
    mean_ms, cv = fields.number("mean_ms", 0.001, 100_000), fields.number("cv", 0, 20, 1.0)
    if fields.has("cv") and shape is not Shape.LOGNORMAL:
        raise fields.refuse("cv", "it with service = 'lognormal' only")
    memory = _memory(fields)
    fields.close()
    return TierSpec(name, ServiceTime(mean_ms, shape, cv), vms, vcpus, memory)


def _wish(fields: Fields) -> str | None:
    if not fields.has("cache"):
        return None
    text = fields.text("cache")
    try:
        parse_wish(text)
    except ValueError as error:
        raise fields.refuse("cache", "auto, or a size such as 40%, 6 ways or 5MiB") from error
    return text


def _bytes(fields: Fields, name: str) -> float:
    try:
        size = parse_wish(fields.text(name))
    except ValueError:
        size = None
    if not isinstance(size, CacheSize) or size.unit is not SizeUnit.BYTES:
        raise fields.refuse(name, "a size such as 512KiB or 1.5MiB")
    return float(size.amount)


def _memory(fields: Fields) -> MemoryUse | None:
    found = fields.table("memory")
    if found is None:
        return None
    memory = MemoryUse(
        _bytes(found, "working_set"),
        found.number("penalty", 0.01, 1000),
        found.number("traffic_gbps", 0.001, 1000),
        found.choice("curve", MissCurve, MissCurve.EXPONENTIAL),
    )
    found.close()
    return memory


def _cache(fields: Fields) -> CacheSpec:
    ways, usual = fields.whole("ways", 2, 32), CacheSpec(2, 1.0, 1.0)
    cache = CacheSpec(
        ways=ways,
        way_bytes=_bytes(fields, "way_size"),
        bandwidth_gbps=fields.number("bandwidth_gbps", 0.01, 100_000),
        domains=fields.whole("domains", 1, 16, usual.domains),
        minimum_ways=fields.whole("minimum_ways", 1, ways, usual.minimum_ways),
        shareable_ways=fields.whole("shareable_ways", 0, ways - 1, usual.shareable_ways),
        closids=fields.whole("closids", 1, 256, usual.closids),
        mba=fields.choice("mba", BandwidthUnit, usual.mba) if fields.flag("limits_bandwidth", True) else None,
        rmids=fields.whole("rmids", 0, 1024, usual.rmids),
    )
    fields.close()
    return cache


def _segment(fields: Fields) -> Segment:
    rate_rps = fields.number("rate_rps", 0, _FASTEST_RPS)
    for_s = fields.number("for_s", 0.001, _LONGEST_S) if fields.has("for_s") else math.inf
    segment: Segment
    if fields.has("to_rps"):
        to_rps = fields.number("to_rps", 0, _FASTEST_RPS)
        segment = Ramp(rate_rps, to_rps, fields.number("for_s", 0.001, _LONGEST_S))
    elif fields.has("swing_rps"):
        swing_rps = fields.number("swing_rps", 0, _FASTEST_RPS)
        segment = Sine(rate_rps, swing_rps, fields.number("period_s", 0.001, _LONGEST_S), for_s)
    else:
        segment = Constant(rate_rps, for_s)
    fields.close()
    return segment


def _batch(fields: Fields) -> BatchSpec:
    name = fields.name("name")
    vms, vcpus = fields.whole("vms", 1, 100, 1), fields.whole("vcpus", 1, 256, 1)
    on_ms = fields.number("on_ms", 0.1, 1e6) if fields.has("on_ms") else None
    off_ms = 0.0 if on_ms is None else fields.number("off_ms", 0.1, 1e6)
    memory = _memory(fields)
    fields.close()
    return BatchSpec(name, vms, vcpus, on_ms, off_ms, memory)


def _fault(fields: Fields) -> Fault:
    kind = fields.choice("kind", FaultKind)
    target = fields.text("target", "")
    if target and kind not in _ON_APPLICATIONS | _ON_VMS:
        raise fields.refuse("target", f"none with kind = {str(kind)!r}")
    fault = Fault(kind, fields.number("at_s", 0, _LONGEST_S), fields.number("for_s", 0.001, _LONGEST_S), target)
    fields.close()
    return fault


def _law(fields: Fields) -> Law:
    values: dict[str, float | bool] = {}
    bounds = bounds_of(Law)
    for field in dataclasses.fields(Law):
        if not fields.has(field.name):
            continue
        if isinstance(field.default, bool):
            values[field.name] = fields.flag(field.name, field.default)
        elif isinstance(field.default, int):
            low, high = bounds[field.name]
            values[field.name] = fields.whole(field.name, int(low), int(high))
        else:
            values[field.name] = fields.number(field.name, *bounds[field.name])
    fields.close()
    return dataclasses.replace(Law(), **values)  # type: ignore[arg-type] # each is of its field's type


def _noise(fields: Fields) -> Noise:
    noise = Noise(fields.number("share", 0, 0.95), fields.number("on_ms", 1, 1e7), fields.number("off_ms", 1, 1e7))
    fields.close()
    return noise


def _scheduler(fields: Fields) -> Scheduler:
    usual = Scheduler()
    scheduler = Scheduler(
        fields.number("slice_ms", 0, 1000, usual.slice_ms),
        fields.number("tick_ms", 0, 100, usual.tick_ms),
        fields.number("balance_ms", 1, 10_000, usual.balance_ms),
    )
    fields.close()
    return scheduler


def _check_names(scenario: Scenario, fields: Fields) -> None:
    applications = [app.name for app in scenario.applications]
    vms = [vm.name for vm in scenario.vms]
    for names, what in ((applications, "applications"), (vms, "VMs")):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SettingsError(f"{what}: the name {twice[0]!r} is used twice")
    for app in scenario.applications:
        tiers = [tier.name for tier in app.tiers]
        if len(set(tiers)) < len(tiers):
            raise SettingsError(f"application {app.name}: two tiers have the same name")
    for number, fault in enumerate(scenario.faults):
        known = applications if fault.kind in _ON_APPLICATIONS else vms if fault.kind in _ON_VMS else [""]
        if fault.target not in known:
            where = f"{fields.path('faults')}[{number}].target"
            raise SettingsError(f"{where} = {fault.target!r} is refused: use {' or '.join(known)}")
