"""The lab for tests with real VMs, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.lab.guest import DEFAULT_BASE
from deploy.lab.lab_lock import only_user, to_stderr


@contextmanager
def lab_turn(who: str, config: pytest.Config, base: Path = DEFAULT_BASE) -> Iterator[None]:
    """Have the lab for oneself while the block runs. Whom it waits for is told past pytest's capture."""
    capture = config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            to_stderr(f"\n{who}: {line}")

    with only_user(who, base, say=say):
        yield
