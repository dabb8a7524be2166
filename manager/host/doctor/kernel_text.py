"""Reading small kernel files of which any may be absent."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from manager.host.registry import HostPaths
from manager.model.cpus import CpuSet, parse_cpus

_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")


def text_of(path: Path) -> str | None:
    """The file's text without blanks around it, None where there is no such file. Raises other OSErrors."""
    try:
        return os.fsdecode(path.read_bytes()).strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def number_of(path: Path) -> int | None:
    """The number in a file, None where there is no such file. Raises OSError, ValueError for anything else in it."""
    text = text_of(path)
    return None if text is None else int(text)


def cpus_of(path: Path) -> CpuSet:
    """The CPU list in a file, empty where there is no such file or it says ``(null)`` (nohz_full off). Raises OSError,
    ValueError.
    """
    text = text_of(path) or ""
    return frozenset() if text == "(null)" else parse_cpus(text)


def names_in(folder: Path) -> list[str]:
    """Names in a folder, sorted; none where there is no such folder. Raises other OSErrors."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def mounted(paths: HostPaths, kind: str) -> Path | None:
    """Where a file system of that kind is mounted first (proc_pid_mountinfo(5)), None where nowhere. Raises OSError."""
    for line in os.fsdecode(paths.mountinfo.read_bytes()).splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) >= 5 and right.split(None, 1)[:1] == [kind]:
            point = _OCTAL_ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), fields[4])
            return paths.root / PurePosixPath(point).relative_to("/")
    return None


def cpu_flags(paths: HostPaths) -> frozenset[str]:
    """The flags (x86) or features (Arm) of the first CPU in /proc/cpuinfo. Raises OSError."""
    for line in paths.cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def online_managed(paths: HostPaths, managed: CpuSet) -> CpuSet:
    """The managed pCPUs that are online. Raises OSError, ValueError."""
    online = parse_cpus(paths.online_cpus.read_text())
    return (managed or online) & online
