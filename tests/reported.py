"""What an agent's report says, whether it is packed or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manager.model.fields import json_fields
from manager.model.packed_ticks import read_pack


def ticks_in(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ticks in the JSON of a report."""
    packed = [tick for text in report.get("packed_ticks", ()) for tick in read_pack(text).ticks()]
    return [*report["ticks"], *map(json_fields, packed)]
