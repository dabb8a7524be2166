"""The units of systemd, read as systemd reads them as far as the tests need it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parents[2]
FOLDER = TOP / "deploy/systemd"
SERVICES = ("equipoise-manager", "equipoise-agent")


def values(unit: str, name: str) -> list[str]:
    """All values of a setting, in their order."""
    return re.findall(rf"^{name}=(.*)$", (FOLDER / unit).read_text(), re.MULTILINE)


def capabilities(unit: str) -> frozenset[str]:
    """What a unit may keep, in lower case and without CAP_."""
    [text] = values(unit, "CapabilityBoundingSet")
    return frozenset(name.removeprefix("CAP_").lower() for name in text.split())


def limited(unit: str, *without: str) -> list[str]:
    """The command that runs another with what the unit lets it have of capabilities, less ``without``."""
    kept = sorted(capabilities(unit) - set(without))
    return ["setpriv", f"--bounding-set={','.join(['-all', *(f'+{name}' for name in kept)])}", "--no-new-privs"]


def _members(name: str) -> Iterator[str]:
    shown = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True)
    for line in shown.stdout.splitlines():
        word = line.strip()
        if word.startswith("@") and word != name:
            yield from _members(word)
        elif word and not word.startswith(("#", "@")):
            yield word


def allowed_calls(unit: str) -> frozenset[str]:
    """The system calls that a unit's filters let through."""
    found = set(_members("@default"))
    for line in values(unit, "SystemCallFilter"):
        names = line.removeprefix("~").split()
        calls = {call for name in names for call in (_members(name) if name.startswith("@") else (name,))}
        found = found - calls if line.startswith("~") else found | calls
    return frozenset(found)
