"""No test starts once the time of ``tests/run --within`` is used up. The summary of tests/run counts those left out."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from pathlib import Path

NO_TIME_LEFT = "NOT TESTED: no time left"


def left_s() -> float:
    """How long tests may still start; infinite where nothing bounds them."""
    until_s = os.environ.get("TESTS_UNTIL_S")
    return float(until_s) - time.time() if until_s else math.inf


def note_left_out(nodeids: Iterable[str]) -> None:
    """Tell tests/run which tests it left out."""
    lines = "".join(f"{nodeid}\n" for nodeid in nodeids)
    file = os.environ.get("TESTS_LEFT_OUT")
    if file and lines:
        with Path(file).open("a") as noted:
            noted.write(lines)
