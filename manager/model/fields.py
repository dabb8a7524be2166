"""What values that are exchanged or stored are made of: names, texts, times and numbers with their bounds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    PlainSerializer,
    TypeAdapter,
)
from pydantic_core import core_schema

from manager.model.cpus import CpuSet, format_cpus, parse_cpus
from manager.model.histogram import FIRST_BUCKET, LAST_BUCKET
from manager.plain import plain_lines

Value = TypeVar("Value")

NAME_MAX = 63
NAME_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_MAX - 1}}}$"
"""Names of hosts, VMs, applications, tiers, policies and tokens."""

MANAGER = "manager"
"""Stands where the manager's own events have their host, so no host may be called so."""

Name = Annotated[str, Field(pattern=NAME_PATTERN, description="1 to 63 letters, digits, dots, dashes, underscores")]
DomainName = Annotated[
    str,
    Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$", description="1 to 255 printable characters"),
]
# No database keeps NUL characters in text.
MAX_TEXT = 2000


def as_text(said: str) -> str:
    """Text as it is exchanged, whatever a third party's policy or the kernel put into it."""
    return (said if said.isprintable() else plain_lines(said))[:MAX_TEXT]


Text = Annotated[
    str,
    Field(max_length=MAX_TEXT, pattern=r"^[^\x00]*$", description="up to 2000 characters, none of them NUL"),
]
SafeText = Annotated[Text, PlainSerializer(as_text, when_used="json")]
"""Text of a third party that an agent reports: made acceptable where it is written."""
Uuid = Annotated[
    str,
    Field(
        pattern=r"^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$",
        description="a UUID such as 6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10; answered in lower case",
    ),
    AfterValidator(str.lower),
]


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _rfc_3339(value: object) -> object:
    # Left to itself, pydantic takes more than that, such as "0.5" for seconds since the epoch.
    if not isinstance(value, str):
        return value
    if not _MOMENT.fullmatch(value):
        raise ValueError("should look like 2026-01-31T12:00:00Z or 2026-01-31T12:00:00.5+01:00")
    return datetime.fromisoformat(value.upper())


# Within these years every time can be converted to any offset and added to without overflow.
Moment = Annotated[
    AwareDatetime,
    Field(
        ge=datetime(1970, 1, 1, tzinfo=UTC),
        lt=datetime(9999, 1, 1, tzinfo=UTC),
        description="an RFC 3339 time with offset, from 1970 to 9998",
    ),
    BeforeValidator(_rfc_3339),  # last: pydantic compares a time itself, what a function answers by functions
]


def timestamp(time_s: float) -> datetime:
    """Seconds since the epoch as an aware datetime."""
    return datetime.fromtimestamp(time_s, UTC)


def _written_time(time_s: float) -> str:
    return timestamp(time_s).isoformat().replace("+00:00", "Z")


_CPUS = Field(
    max_length=MAX_TEXT,
    pattern=r"^([0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*)?$",
    description="pCPU numbers and ranges such as 0-3,8",
)


def written_as(
    exchanged: object,
    read: Callable[[Any], object],
    write: Callable[[Any], object],
    written: core_schema.CoreSchema | None = None,
) -> GetPydanticSchema:
    """How a value that JSON does not have is exchanged: as the type ``exchanged``, ``written`` as text if not said."""
    as_written = core_schema.plain_serializer_function_ser_schema(
        write, return_schema=written or core_schema.str_schema()
    )

    def schema(_kind: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        shape = handler.generate_schema(exchanged)
        return core_schema.no_info_after_validator_function(read, shape, serialization=as_written)

    return GetPydanticSchema(schema)


EpochS = Annotated[float, written_as(Moment, datetime.timestamp, _written_time)]
"""Seconds since the epoch, exchanged as a Moment."""
Cpus = Annotated[CpuSet, written_as(Annotated[str, _CPUS], parse_cpus, format_cpus)]


def _names_some(cpus: CpuSet) -> CpuSet:
    if not cpus:
        raise ValueError("names no pCPU")
    return cpus


SomeCpus = Annotated[Cpus, AfterValidator(_names_some)]
Share = Annotated[float, Field(ge=0, le=1, description="fraction of the host's CPU time")]
Count = Annotated[int, Field(ge=0, le=2**53)]
Weight = Annotated[int, Field(ge=1, le=262_144)]


Percentile = Annotated[float, Field(gt=0, lt=100)]
Buckets = Annotated[
    dict[Annotated[int, Field(ge=FIRST_BUCKET, le=LAST_BUCKET)], Count],
    Field(
        description=f"counts by bucket number, {FIRST_BUCKET} to {LAST_BUCKET}",
        json_schema_extra={"propertyNames": {"pattern": "^[1-9][0-9]{2}$"}},
    ),
]


CLOSED = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Of values that are exchanged: unknown fields and NaN are refused."""


def adapter_of(kind: type[Value]) -> TypeAdapter[Value]:
    """What reads and writes values of a type."""
    return cast(TypeAdapter[Value], _adapter_of(kind))  # type: ignore[arg-type] # a type can be hashed


_adapter_of = cache(TypeAdapter)


def json_of(value: object) -> bytes:
    """A value as JSON, as it is exchanged."""
    return adapter_of(type(value)).dump_json(value, by_alias=True)


def json_fields(value: object) -> dict[str, Any]:
    """The fields of a value as JSON has them."""
    written: dict[str, Any] = adapter_of(type(value)).dump_python(value, mode="json", by_alias=True)
    return written


def fields_of(kind: type, value: object) -> dict[str, Any]:
    """The fields of a dataclass by name, from a value that has them all, such as a row or a value with more of them."""
    return {name: getattr(value, name) for name in _names(kind)}


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def bounds_of(kind: type) -> dict[str, tuple[float, float]]:
    """Least and largest value of each number of a dataclass that has both."""
    fields: dict[str, dict[str, float]] = adapter_of(kind).json_schema()["properties"]
    return {name: (field["minimum"], field["maximum"]) for name, field in fields.items() if "maximum" in field}


WIRE = ConfigDict(**CLOSED, validate_by_name=True, validate_by_alias=True)
"""Of values that are kept by the names of their fields, too."""


class Schema(BaseModel):
    """Base of shapes that are exchanged and nothing else."""

    model_config = CLOSED
