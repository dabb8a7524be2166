"""What the scripts of charts do with answers that come late, that are empty, and that hold much."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from webui.assets import FOLDER

NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")


def run(*steps: str, query: str = "") -> list[dict[str, Any]]:
    """What is shown after each step, see dom.mjs."""
    assert NODE is not None
    command = [NODE, str(Path(__file__).with_name("dom.mjs")), str(FOLDER), query, *steps]
    told = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60)
    shown: list[dict[str, Any]] = json.loads(told.stdout)
    return shown


def test_a_range_without_values_is_not_told_of_with_those_of_another() -> None:
    full, empty = run("full", "empty")
    assert "violated in 3 of 10 intervals" in full["range"]
    assert "No response times in this range." in empty["words"]
    assert empty["range"] == ""


def test_answers_are_shown_though_they_take_longer_than_changes_are_apart() -> None:
    [shown] = run("often")
    assert shown["drawn"] >= 3


@pytest.mark.parametrize("query", ["?since=yesterday&until=now", "?since=2026-01-01T00:00:00Z", "?range=much"])
def test_a_range_that_is_none_is_the_last_hour(query: str) -> None:
    [shown] = run("full", query=query)
    assert shown["drawn"] >= 1
    assert shown["failed"] == []


def test_weights_of_hundreds_of_vms_are_drawn() -> None:
    [shown] = run("many")
    assert shown["failed"] == []
