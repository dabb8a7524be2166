"""The older program that tests of upgrades begin with."""

from __future__ import annotations

import subprocess

from tests.deploy.units import TOP

CAME_LAST = "manager/loop/guard.py"
"""A file that came with the last change which older versions cannot follow, in what agents and managers exchange, in
the journal, or, until the first release, in the first migration. Who makes such a change names one that it adds."""
REVISION = "0001"
"""Of the older program's tables."""


def older_commit() -> str:
    """The commit that added ``CAME_LAST``; empty in a checkout without history."""
    added = ["git", "-C", str(TOP), "log", "-1", "--diff-filter=A", "--format=%H", "--", CAME_LAST]
    return subprocess.run(added, capture_output=True, text=True, check=False).stdout.strip()
