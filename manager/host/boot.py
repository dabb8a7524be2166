"""Which start of the machine this is."""

from __future__ import annotations

from pathlib import Path

from manager.host.registry import HostPaths


def boot_name(paths: HostPaths = HostPaths(Path("/"))) -> str:  # noqa: B008 - it is frozen
    """A name that no other start of any machine has; empty: this kernel tells none."""
    try:
        return paths.boot_id.read_text().strip()
    except OSError:
        return ""
