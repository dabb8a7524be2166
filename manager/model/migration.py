"""Migrations of VMs from host to host: proposals, what an agent is asked to do, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from manager.model.fields import WIRE, Count, DomainName, Name, Percentile, Text, Uuid

Milliseconds = Annotated[float, Field(ge=0)]


class MigrationUse(StrEnum):
    """How migrations away from a host begin: proposed to an operator, automatically, or not at all."""

    OFF = "off"
    PROPOSE = "propose"
    AUTO = "auto"


class MigrationState(StrEnum):
    """How far a proposal is. ``expired``: nobody approved it while its prediction was of some use."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DISMISSED = "dismissed"
    EXPIRED = "expired"


UNDER_WAY = frozenset({MigrationState.APPROVED, MigrationState.RUNNING})
OPEN = UNDER_WAY | {MigrationState.PROPOSED}


@dataclass(frozen=True, slots=True)
class MoveSpan:
    """A simulated percentile with its interval, in milliseconds."""

    ms: Milliseconds
    low_ms: Milliseconds
    high_ms: Milliseconds
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class MovePrediction:
    """What a migration does to an application's percentile on ``host``, where its requests are served then."""

    application: Name
    host: Name
    percentile: Percentile
    target_ms: Milliseconds
    before: Annotated[MoveSpan | None, Field(description="simulated without the migration; null: not predicted")]
    after: Annotated[MoveSpan | None, Field(description="simulated with it; null: it would answer nothing")]
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class MigrationOrder:
    """A migration that the agent of the VM's host is to carry out; ``begun``: an agent reported that it has begun."""

    number: Count
    vm: Name
    libvirt_name: DomainName
    libvirt_uuid: Uuid
    to: Annotated[Name, Field(description="the host it goes to")]
    begun: bool = False
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """How far a migration is, as the agent of the VM's host reports: ``running``, ``done`` or ``failed``."""

    number: Count
    state: MigrationState
    copied: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        Field(description="part of the VM's memory that was copied; null: not known"),
    ] = None
    detail: Annotated[Text, Field(description="why it failed; empty: it did not")] = ""
    __pydantic_config__: ClassVar = WIRE
