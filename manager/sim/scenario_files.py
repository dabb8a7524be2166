"""Scenario files: TOML, described in docs/how-to/simulator.md; some come with Equipoise."""

from __future__ import annotations

import dataclasses
import tomllib
import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from manager.errors import SettingsError
from manager.model.cache import BandwidthUnit, CacheSize, SizeUnit, parse_wish
from manager.model.law import Law
from manager.model.registration import Mode, Sla
from manager.model.rules import PlacementRules
from manager.sim.scenario import (
    AppSpec,
    BatchPhase,
    BatchSpec,
    CacheSpec,
    Constant,
    Fault,
    FaultKind,
    HalfWaveMs,
    MemoryUse,
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
    VmSettings,
)

Value = TypeVar("Value")

_SUFFIX = ".toml"
_FOLDER = resources.files("manager.sim") / "scenarios"
_ON_VMS = frozenset({FaultKind.VM_RESTART, FaultKind.WRITE_ERROR, FaultKind.READ_ERROR})


def shipped() -> tuple[str, ...]:
    """Names of the scenarios that come with Equipoise."""
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in _FOLDER.iterdir() if file.name.endswith(_SUFFIX)))


def load_scenario(name: str) -> Scenario:
    """A shipped scenario by its name, or one in a file. Raises SettingsError saying what is wrong where."""
    if name in shipped():
        return parse_scenario((_FOLDER / (name + _SUFFIX)).read_text(), name)
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
        fields = _Fields(tomllib.loads(text))
        scenario = _scenario(fields, name)
        fields.close()
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"scenario {name}: not TOML: {error}") from error
    except SettingsError as error:
        raise SettingsError(f"scenario {name}: {error}") from error
    return scenario


class _Fields:
    """One table; ``where`` is its path in error messages, such as ``applications[0].tiers[0]``."""

    def __init__(self, table: object, where: str = "") -> None:
        if not isinstance(table, dict):
            raise SettingsError(f"{where or 'the file'}: {table!r} is refused: use a table")
        self._table: Mapping[str, object] = table
        self._where = where
        self._read: set[str] = set()

    def path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def refuse(self, name: str, use: str) -> SettingsError:
        """The error for an unusable value."""
        shown = repr(self._table[name]) if self.has(name) else "nothing"
        return SettingsError(f"{self.path(name)} = {shown} is refused: use {use}")

    def has(self, name: str) -> bool:
        return name in self._table

    def value(self, name: str, kind: Any, default: object = dataclasses.MISSING) -> Any:
        """A field of a type, of which None means that it need not be there. Without a default it must be."""
        self._read.add(name)
        if not self.has(name):
            if default is dataclasses.MISSING:
                raise SettingsError(f"{self.path(name)} is missing")
            return default
        if get_origin(kind) is types.UnionType or type(None) in get_args(kind):
            [kind] = [member for member in get_args(kind) if member is not type(None)]
        bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        choice = isinstance(bare, type) and issubclass(bare, StrEnum)
        adapter: TypeAdapter[Any] = TypeAdapter(bare if choice else kind)
        try:
            return adapter.validate_python(self._table[name], strict=not choice)
        except ValidationError:
            raise self.refuse(name, _allowed(adapter.json_schema())) from None

    def read(self, kind: type[Value], **made: object) -> Value:
        """A dataclass from the fields of its names, but for what was ``made`` otherwise."""
        kinds = get_type_hints(kind, include_extras=True)
        values = {
            field.name: self.value(field.name, kinds[field.name], field.default)
            for field in dataclasses.fields(kind)  # type: ignore[arg-type] # a dataclass
            if field.name not in made
        }
        return kind(**values, **made)

    def table(self, name: str, make: Callable[[_Fields], Value]) -> Value | None:
        """What is made of a table inside, None where there is none."""
        self._read.add(name)
        return _whole(make, self._table[name], self.path(name)) if self.has(name) else None

    def tables(self, name: str, make: Callable[[_Fields], Value], least: int = 0) -> tuple[Value, ...]:
        """What is made of each table of a list."""
        rows = self.value(name, list, dataclasses.MISSING if least else [])
        if len(rows) < least:
            raise self.refuse(name, "a list of at least one table")
        return tuple(_whole(make, row, f"{self.path(name)}[{number}]") for number, row in enumerate(rows))

    def close(self) -> None:
        """Raises SettingsError for a field that nothing read."""
        unknown = sorted(self._table.keys() - self._read)
        if unknown:
            raise SettingsError(f"{self.path(unknown[0])} is not a field here: use {', '.join(sorted(self._read))}")


def _whole(make: Callable[[_Fields], Value], table: object, where: str) -> Value:
    fields = _Fields(table, where)
    value = make(fields)
    fields.close()
    return value


def _allowed(schema: Mapping[str, Any]) -> str:
    """What a field takes, in words."""
    if "anyOf" in schema:  # something or nothing, of which files leave out the latter
        [schema] = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    if schema["type"] in {"number", "integer"}:
        least = f"from {schema['minimum']}" if "minimum" in schema else f"above {schema['exclusiveMinimum']}"
        most = f"to {schema['maximum']}" if "maximum" in schema else f"below {schema['exclusiveMaximum']}"
        return f"{'a whole number' if schema['type'] == 'integer' else 'a number'} {least} {most}"
    usual = {"boolean": "true or false", "string": "a text", "array": "a list of tables"}
    return str(schema.get("description", usual[schema["type"]]))


def _of(kind: type[Value]) -> Callable[[_Fields], Value]:
    return partial(_Fields.read, kind=kind)


def _scenario(fields: _Fields, name: str) -> Scenario:
    scenario = fields.read(
        Scenario,
        name=name,
        applications=fields.tables("applications", _application, least=1),
        batch=fields.tables("batch", _batch),
        faults=fields.tables("faults", _fault),
        law=fields.table("law", _of(Law)) or Law(),
        noise=fields.table("noise", _of(Noise)),
        scheduler=fields.table("scheduler", _of(Scheduler)) or Scheduler(),
        cache=fields.table("cache", _cache),
        placement=fields.table("placement", _of(PlacementRules)) or PlacementRules(),
        settings=fields.tables("settings", _of(VmSettings)),
    )
    if scenario.mode is Mode.RELEASED:
        raise fields.refuse("mode", "'enforce' or 'observe'")
    memories = [tier.memory for app in scenario.applications for tier in app.tiers]
    if scenario.cache is None and any([*memories, *(group.memory for group in scenario.batch)]):
        raise fields.refuse("cache", "a table where VMs have one named memory")
    _check_names(scenario)
    return scenario


def _application(fields: _Fields) -> AppSpec:
    cache = fields.value("cache", str, None)
    try:
        _ = cache is None or parse_wish(cache)
    except ValueError as error:
        raise fields.refuse("cache", "auto, or a size such as 40%, 6 ways or 5MiB") from error
    return fields.read(
        AppSpec,
        sla=fields.read(Sla),
        tiers=fields.tables("tiers", _tier, least=1),
        load=fields.tables("load", _segment, least=1),
        route=fields.value("source", SampleRoute, SampleRoute.LOCAL),
        cache=cache,
    )


def _tier(fields: _Fields) -> TierSpec:
    service = fields.read(ServiceTime, shape=fields.value("service", Shape, Shape.EXPONENTIAL))
    if fields.has("cv") and service.shape is not Shape.LOGNORMAL:
        raise fields.refuse("cv", "it with service = 'lognormal' only")
    return fields.read(TierSpec, service=service, memory=fields.table("memory", _memory))


def _bytes(fields: _Fields, name: str) -> float:
    try:
        size = parse_wish(fields.value(name, str))
    except ValueError:
        size = None
    if not isinstance(size, CacheSize) or size.unit is not SizeUnit.BYTES:
        raise fields.refuse(name, "a size such as 512KiB or 1.5MiB")
    return float(size.amount)


def _memory(fields: _Fields) -> MemoryUse:
    return fields.read(MemoryUse, working_set_bytes=_bytes(fields, "working_set"))


def _cache(fields: _Fields) -> CacheSpec:
    limits = fields.value("limits_bandwidth", bool, True)
    mba = fields.value("mba", BandwidthUnit, BandwidthUnit.PERCENT) if limits else None
    cache = fields.read(CacheSpec, way_bytes=_bytes(fields, "way_size"), minimum_ways=1, shareable_ways=0, mba=mba)
    return dataclasses.replace(
        cache,
        minimum_ways=fields.value("minimum_ways", Annotated[int, Field(ge=1, le=cache.ways)], 1),
        shareable_ways=fields.value("shareable_ways", Annotated[int, Field(ge=0, le=cache.ways - 1)], 0),
    )


def _segment(fields: _Fields) -> Segment:
    if fields.has("to_rps"):
        return fields.read(Ramp)
    return fields.read(Sine) if fields.has("swing_rps") else fields.read(Constant)


def _batch(fields: _Fields) -> BatchSpec:
    off_ms = fields.value("off_ms", HalfWaveMs) if fields.has("on_ms") else 0.0
    phases = fields.tables("phases", _of(BatchPhase))
    if phases and fields.has("on_ms"):
        raise fields.refuse("on_ms", "either it or phases")
    return fields.read(BatchSpec, off_ms=off_ms, memory=fields.table("memory", _memory), phases=phases)


def _fault(fields: _Fields) -> Fault:
    fault = fields.read(Fault)
    if fault.target and fault.kind not in {FaultKind.SOURCE_SILENT, *_ON_VMS}:
        raise fields.refuse("target", f"none with kind = {str(fault.kind)!r}")
    return fault


def _check_names(scenario: Scenario) -> None:
    applications = [app.name for app in scenario.applications]
    vms = [vm.name for vm in scenario.vms]
    for names, what in ((applications, "applications"), (vms, "VMs")):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SettingsError(f"{what}: the name {twice[0]!r} is used twice")
    for app in scenario.applications:
        if len({tier.name for tier in app.tiers}) < len(app.tiers):
            raise SettingsError(f"application {app.name}: two tiers have the same name")
    for number, settings in enumerate(scenario.settings):
        if settings.vm not in vms or settings.vm in [other.vm for other in scenario.settings[:number]]:
            where = f"settings[{number}].vm"
            raise SettingsError(f"{where} = {settings.vm!r} is refused: use each of {', '.join(vms)} once at most")
    for number, fault in enumerate(scenario.faults):
        targets = applications if fault.kind is FaultKind.SOURCE_SILENT else vms if fault.kind in _ON_VMS else [""]
        if fault.target not in targets:
            where = f"faults[{number}].target"
            raise SettingsError(f"{where} = {fault.target!r} is refused: use {' or '.join(targets)}")
