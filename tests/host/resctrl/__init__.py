"""Trees of resctrl as machines have them; what they are is in README.md.

The format is that of ``tests.host.topologies``; a text may hold several lines, with ``\\n`` between them.
"""

from __future__ import annotations

from pathlib import Path

from manager.host.registry import HostPaths
from tests.host.topologies import unpack_text

FOLDER = Path(__file__).parent
TREES = tuple(sorted(file.stem for file in (FOLDER / "trees").glob("*.txt")))


def unpack(name: str, root: Path) -> HostPaths:
    """Make a machine's files below ``root``."""
    unpack_text((FOLDER / "trees" / f"{name}.txt").read_text(), root)
    for file in root.rglob("*"):
        if file.is_file() and "\\n" in file.read_text():
            mode = file.stat().st_mode
            file.chmod(0o644)
            file.write_text(file.read_text().replace("\\n", "\n"))
            file.chmod(mode)
    return HostPaths(root)
