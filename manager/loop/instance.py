"""The id of an agent, by which a manager tells it from another one with the same host name."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

from manager.private import replace_file

INSTANCE_FILE = "instance"


def instance_id(folder: Path) -> str:
    """The id that the state directory keeps, made on the first start. Raises OSError."""
    path = folder / INSTANCE_FILE
    try:
        known = path.read_text(errors="replace").strip()
    except FileNotFoundError:
        known = ""
    if re.fullmatch(r"[0-9a-f-]{36}", known):
        return known
    made = str(uuid.uuid4())
    replace_file(path, made.encode() + b"\n")
    return made
