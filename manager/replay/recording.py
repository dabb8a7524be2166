"""A host's history in a file: what its ticks saw, response times, and decisions.

JSON lines, each an object with a ``kind``: a ``header``, an ``assignment``, a ``capabilities``, any number of ``vm``,
``tick``, ``window`` and ``decision``, and an ``end`` with the number of lines before it, which shows that the file is
complete. Besides ``kind``, lines have the shapes of the REST interface; see docs/how-to/replay.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError
from pydantic_core import from_json, to_json

from manager.errors import RecordingError
from manager.model.fields import CLOSED, WIRE, EpochS, Name, Weight, adapter_of
from manager.model.host import Capabilities
from manager.model.records import DecisionRecord, TickRecord
from manager.model.registration import Assignment
from manager.model.window import Window

VERSION = 1
_MAX_VALUE_TEXT = 80


@dataclass(frozen=True, slots=True)
class RecordedVm:
    """What ticks do not say of a VM: its vCPUs, and its weight before Equipoise changed it, None if unknown."""

    vm: Name
    vcpus: Annotated[int, Field(ge=0, le=8192)]
    original_weight: Weight | None = None
    __pydantic_config__: ClassVar = CLOSED


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

    @property
    def policies(self) -> list[str]:
        """The policies in force, in order of time."""
        return list(dict.fromkeys(tick.policy for tick in self.ticks))


@dataclass(frozen=True, slots=True)
class _Header:
    host: Name
    from_s: Annotated[EpochS, Field(alias="from")]
    to_s: Annotated[EpochS, Field(alias="to")]
    slot_s: Annotated[float, Field(gt=0, le=300)]
    format: Literal["equipoise-recording"] = "equipoise-recording"
    version: Literal[1] = 1
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class _End:
    lines: Annotated[int, Field(ge=1)]
    __pydantic_config__: ClassVar = CLOSED


_KINDS: dict[str, type[Any]] = {
    "header": _Header,
    "assignment": Assignment,
    "capabilities": Capabilities,
    "vm": RecordedVm,
    "tick": TickRecord,
    "window": Window,
    "decision": DecisionRecord,
    "end": _End,
}


def write_lines(recording: Recording) -> Iterator[str]:
    """The lines of a recording, each with its newline."""
    assignment = recording.assignment
    values: list[tuple[str, Any]] = [
        ("header", _Header(assignment.host.name, recording.from_s, recording.to_s, assignment.slot_s)),
        ("assignment", assignment),
        ("capabilities", recording.capabilities),
        *(("vm", vm) for vm in recording.vms),
        *(("tick", tick) for tick in recording.ticks),
        *(("window", window) for window in recording.windows),
        *(("decision", record) for record in recording.decisions),
    ]
    for kind, value in (*values, ("end", _End(len(values)))):
        body = adapter_of(_KINDS[kind]).dump_python(value, mode="json", by_alias=True)
        yield to_json({"kind": kind, **body}).decode() + "\n"


def read_lines(lines: Iterable[str]) -> Recording:
    """The inverse of ``write_lines``; empty lines are skipped. Raises RecordingError naming line, field and value."""
    values: defaultdict[str, list[Any]] = defaultdict(list)
    count = number = 0
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        if values["end"]:
            raise RecordingError(f"line {number}: something follows the end")
        kind, value = _read(text, f"line {number}: " + ("" if count else f"not a recording of version {VERSION}: "))
        if not count and kind != "header":
            raise RecordingError(f"line {number}: not a recording of version {VERSION}: the first line is no header")
        if count and kind == "header":
            raise RecordingError(f"line {number}: a second header")
        values[kind].append(value)
        count += 1
    if not count:
        raise RecordingError("the file is empty")
    if not values["end"]:
        raise RecordingError(f"line {number} is the last one, but not the end: the file was cut off")
    if values["end"][0].lines != count - 1:
        raise RecordingError(
            f"line {number}: lines = {values['end'][0].lines}, but {count - 1} come before: some are missing"
        )
    return _recording(values)


def _read(text: str, where: str) -> tuple[str, Any]:
    """Kind and value of a line."""
    try:
        body = from_json(text)
    except ValueError as error:
        raise RecordingError(f"{where}not JSON, or cut off: {error}") from None
    kind = body.pop("kind", None) if isinstance(body, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise RecordingError(f"{where}kind = {_shown(kind)} is refused: use {', '.join(_KINDS)}")
    try:
        return kind, adapter_of(_KINDS[kind]).validate_python(body)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"])) or "the line"
        raise RecordingError(f"{where}{field} = {_shown(problem['input'])} is refused: {problem['msg']}") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_TEXT else text[:_MAX_VALUE_TEXT] + "…"


def _recording(values: dict[str, list[Any]]) -> Recording:
    for kind in ("assignment", "capabilities"):
        if len(values[kind]) != 1:
            raise RecordingError(f"{len(values[kind])} lines of kind {kind} are in it: use one")
    [header], [assignment], [capabilities] = (values[kind] for kind in ("header", "assignment", "capabilities"))
    if assignment.host.name != header.host:
        raise RecordingError(f"the header is of host {header.host}, the assignment of {assignment.host.name}")
    if assignment.slot_s != header.slot_s:
        raise RecordingError(f"slot_s is {header.slot_s:g} in the header and {assignment.slot_s:g} in the assignment")
    if not values["tick"]:
        raise RecordingError(f"no tick of host {header.host} is in it")
    return Recording(
        from_s=header.from_s,
        to_s=header.to_s,
        assignment=assignment,
        capabilities=capabilities,
        vms=tuple(values["vm"]),
        ticks=tuple(sorted(values["tick"], key=lambda tick: tick.time_s)),
        windows=tuple(sorted(values["window"], key=lambda window: window.end_s)),
        decisions=tuple(sorted(values["decision"], key=lambda record: record.time_s)),
    )
