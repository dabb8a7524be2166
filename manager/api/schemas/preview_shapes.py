"""Shapes of what a change of mode or policy would come to."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from manager.model.fields import Name, Schema, Text
from manager.model.registration import Mode
from manager.protocol.report import KnobChange


class PreviewKind(StrEnum):
    """How a preview is known, that of its least certain change.

    ``exact``: settings go back to their originals, or stay. ``observed``: the agent decides it and does not write it.
    ``estimated``: from the last minutes, which do not react to other settings.
    """

    EXACT = "exact"
    OBSERVED = "observed"
    ESTIMATED = "estimated"


class PreviewChange(KnobChange):
    """One setting of a VM, or of the host itself."""

    vm: Name | None = Field(default=None, description="null: a setting of the host itself")


class PreviewOut(Schema):
    """What would be changed. Nothing was."""

    host: Name | None = Field(description="null: no agent sees the VM run, or it is of several hosts")
    mode: Mode
    policy: Name | None = Field(description="null as `host`")
    kind: PreviewKind
    changes: list[PreviewChange]
    notes: list[Text] = Field(description="what this preview does not know or tell")
