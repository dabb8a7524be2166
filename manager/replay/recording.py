"""A host's history in a file: what its ticks saw, response times, and what was decided.

JSON lines, each an object with a ``kind``: a ``header`` first, then one ``assignment``, one ``capabilities``, any
number of ``vm``, ``tick``, ``window`` and ``decision``, and an ``end`` with the number of lines before it, by which a
file that was cut off is found out. Besides ``kind``, lines have the shapes of the REST interface; see
docs/how-to/replay.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from manager.errors import RecordingError
from manager.model.fields import Moment, Name, Schema, Weight, json_of, timestamp
from manager.model.host import Capabilities
from manager.model.records import DecisionRecord, TickRecord
from manager.model.registration import Assignment
from manager.model.window import Window
from manager.protocol.assignment import AssignedApplication, AssignedHost, AssignedVm, AssignmentOut
from manager.protocol.convert import application_body, assignment_of, host_fields, vm_fields, window_body, window_of
from manager.protocol.report import WindowBody

FORMAT, VERSION = "equipoise-recording", 1

_MAX_VALUE_TEXT = 80


@dataclass(frozen=True, slots=True)
class RecordedVm:
    """What ticks do not tell of a VM: its vCPUs, and its weight before Equipoise changed it, None where unknown."""

    vm: str
    vcpus: int
    original_weight: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """The history of a host from ``from_s`` until before ``to_s`` (seconds since the epoch), each part oldest first.

    Windows also come from some time before, because policies look back. Registrations are those at the time of
    recording.
    """

    from_s: float
    to_s: float
    assignment: Assignment
    capabilities: Capabilities
    vms: tuple[RecordedVm, ...]
    ticks: tuple[TickRecord, ...]
    windows: tuple[Window, ...]
    decisions: tuple[DecisionRecord, ...]


class _Header(Schema):
    kind: Literal["header"] = "header"
    format: Literal["equipoise-recording"] = "equipoise-recording"
    version: Literal[1] = 1
    host: Name
    from_: Moment = Field(alias="from")
    to: Moment
    slot_s: Annotated[float, Field(gt=0, le=300)]


class _Assignment(AssignmentOut):
    kind: Literal["assignment"] = "assignment"


@dataclass(frozen=True, slots=True)
class _Capabilities(Capabilities):
    kind: Literal["capabilities"] = "capabilities"


class VmLine(Schema):
    """A VM as a recording holds it."""

    kind: Literal["vm"] = "vm"
    vm: Name
    vcpus: Annotated[int, Field(ge=0, le=8192)]
    original_weight: Weight | None = None


@dataclass(frozen=True, slots=True)
class _Tick(TickRecord):
    kind: Literal["tick"] = "tick"


class _Window(WindowBody):
    kind: Literal["window"] = "window"


@dataclass(frozen=True, slots=True)
class _Decision(DecisionRecord):
    kind: Literal["decision"] = "decision"


class _End(Schema):
    kind: Literal["end"] = "end"
    lines: Annotated[int, Field(ge=1)]


_Line = Annotated[
    _Header | _Assignment | _Capabilities | VmLine | _Tick | _Window | _Decision | _End, Field(discriminator="kind")
]
_LINE: TypeAdapter[_Line] = TypeAdapter(_Line)
Plain = Capabilities | TickRecord | DecisionRecord
Value = TypeVar("Value", bound=Plain)
Kind = TypeVar("Kind", bound=BaseModel | Plain)


def write_lines(recording: Recording) -> Iterator[str]:
    """The lines of a recording, each with its newline. Raises pydantic.ValidationError for values out of range."""
    lines = 0
    for line in _bodies(recording):
        lines += 1
        yield json_of(line).decode() + "\n"
    yield _End(lines=lines).model_dump_json() + "\n"


def read_lines(lines: Iterable[str]) -> Recording:
    """The inverse of ``write_lines``; empty lines are passed over.

    Raises RecordingError naming line, field and value.
    """
    found: list[tuple[int, _Line]] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        if found and isinstance(found[-1][1], _End):
            raise RecordingError(f"line {number}: something follows the end")
        found.append((number, _read(number, text, first=not found)))
        if len(found) > 1 and isinstance(found[-1][1], _Header):
            raise RecordingError(f"line {number}: a second header")
    if not found:
        raise RecordingError("the file is empty")
    number, last = found[-1]
    if not isinstance(last, _End):
        raise RecordingError(f"line {number} is the last one, but not the end: the file was cut off")
    if last.lines != len(found) - 1:
        raise RecordingError(f"line {number}: lines = {last.lines}, but {len(found) - 1} come before: some are missing")
    return _recording([line for _, line in found])


def _bodies(recording: Recording) -> Iterator[BaseModel | Plain]:
    assignment = recording.assignment
    times = {"from": timestamp(recording.from_s), "to": timestamp(recording.to_s)}
    yield _Header.model_validate({"host": assignment.host.name, "slot_s": assignment.slot_s, **times})
    yield _assignment_line(assignment)
    yield _as(_Capabilities, recording.capabilities)
    for vm in recording.vms:
        yield VmLine(**asdict(vm))
    for tick in recording.ticks:
        yield _as(_Tick, tick)
    for window in recording.windows:
        yield _Window(**window_body(window).model_dump())
    for record in recording.decisions:
        yield _as(_Decision, record)


def _assignment_line(assignment: Assignment) -> _Assignment:
    host = assignment.host
    return _Assignment(
        host=AssignedHost(name=host.name, adoptions=host.adoptions, **host_fields(host)),
        vms=[AssignedVm(name=vm.name, adoptions=vm.adoptions, **vm_fields(vm)) for vm in assignment.vms],
        applications=[
            AssignedApplication(name=application.name, **dict(application_body(application)))
            for application in assignment.applications
        ],
        slot_s=assignment.slot_s,
    )


def _read(number: int, text: str, first: bool) -> _Line:
    try:
        line = _LINE.validate_json(text)
    except ValidationError as error:
        one = error.errors(include_url=False)[0]
        if one["type"] == "json_invalid":
            reason = f"not JSON, or cut off: {one['msg'].removeprefix('Invalid JSON: ')}"
        else:
            # The first step names the kind of the line, which is known from its text.
            field = ".".join(str(step) for step in one["loc"][1:])
            shown = repr(one["input"])
            shown = shown if len(shown) <= _MAX_VALUE_TEXT else shown[:_MAX_VALUE_TEXT] + "…"
            reason = f"{field or 'the line'} = {shown} is refused: {one['msg']}"
        raise RecordingError(f"line {number}: {_no_recording(first)}{reason}") from None
    if first and not isinstance(line, _Header):
        raise RecordingError(f"line {number}: {_no_recording(first)}the first line is no header")
    return line


def _no_recording(first: bool) -> str:
    return f"not a recording of version {VERSION}: " if first else ""


def _recording(lines: list[_Line]) -> Recording:
    [header] = _of(lines, _Header)
    assignment, _ = assignment_of(_only(lines, _Assignment, "assignment"))
    if assignment.host.name != header.host:
        raise RecordingError(f"the header is of host {header.host}, the assignment of {assignment.host.name}")
    if assignment.slot_s != header.slot_s:
        raise RecordingError(f"slot_s is {header.slot_s:g} in the header and {assignment.slot_s:g} in the assignment")
    ticks = [_as(TickRecord, line) for line in _of(lines, _Tick)]
    if not ticks:
        raise RecordingError(f"no tick of host {header.host} is in it")
    windows = [window_of(line.application, line) for line in _of(lines, _Window)]
    decisions = [_as(DecisionRecord, line) for line in _of(lines, _Decision)]
    return Recording(
        from_s=header.from_.timestamp(),
        to_s=header.to.timestamp(),
        assignment=assignment,
        capabilities=_as(Capabilities, _only(lines, _Capabilities, "capabilities")),
        vms=tuple(RecordedVm(line.vm, line.vcpus, line.original_weight) for line in _of(lines, VmLine)),
        ticks=tuple(sorted(ticks, key=lambda tick: tick.time_s)),
        windows=tuple(sorted(windows, key=lambda window: window.end_s)),
        decisions=tuple(sorted(decisions, key=lambda record: record.time_s)),
    )


def _of(lines: Iterable[_Line], kind: type[Kind]) -> list[Kind]:
    return [line for line in lines if isinstance(line, kind)]


def _only(lines: Iterable[_Line], kind: type[Kind], name: str) -> Kind:
    found = _of(lines, kind)
    if len(found) != 1:
        raise RecordingError(f"{len(found)} lines of kind {name} are in it: use one")
    return found[0]


def _as(kind: type[Value], value: Plain) -> Value:
    """The same value as a line of a recording, or the other way round."""
    values: dict[str, Any] = {field.name: getattr(value, field.name) for field in fields(kind) if field.name != "kind"}
    return kind(**values)
