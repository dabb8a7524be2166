"""How many lines and branches the tests from unit to web run, of each room, against the floor.

usage: python -m tests.coverage FILE      what slipcover wrote, JSON
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

FLOOR_PERCENT = 85.3
"""Just below what it was when it was last raised. Raise it with the coverage; it is never lowered."""


def main() -> int:
    """Print the table; 1 when the floor is not reached."""
    rooms: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file, coverage in json.loads(Path(sys.argv[1]).read_text())["files"].items():
        summary = coverage["summary"]
        covered = summary["covered_lines"] + summary["covered_branches"]
        missing = summary["missing_lines"] + summary["missing_branches"]
        for room in (str(Path(file).parent), "all"):
            rooms[room][0] += covered
            rooms[room][1] += covered + missing
    for room, (covered, lines) in sorted(rooms.items()):
        print(f"{room:32} {covered:6} of {lines:6}  {100 * covered / max(1, lines):5.1f} %")
    covered, lines = rooms["all"]
    percent = 100 * covered / max(1, lines)
    print(f"lines and branches covered: {percent:.1f} %, floor {FLOOR_PERCENT} %")
    return int(percent < FLOOR_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
