"""What the scripts of charts do with answers that come late, are empty or hold much, and how pages follow changes."""

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
    told = subprocess.run(command, capture_output=True, check=True, text=True, timeout=200)
    shown: list[dict[str, Any]] = json.loads(told.stdout)
    return shown


def follow(*steps: str) -> list[dict[str, Any]]:
    """What a page shows of its connection after each step, see live.mjs."""
    assert NODE is not None
    command = [NODE, str(Path(__file__).with_name("live.mjs")), str(FOLDER), *steps]
    told = subprocess.run(command, capture_output=True, check=True, text=True, timeout=200)
    shown: list[dict[str, Any]] = json.loads(told.stdout)
    return shown


def test_a_stream_that_never_says_hello_is_given_up() -> None:
    *_, again, silent = follow("hello", "bye", "wait")
    assert (again["streams"], again["open"]) == (2, True)
    assert not silent["open"]
    assert silent["text"].startswith("live, every ")  # without a stream the page asks by itself


def test_a_page_stays_as_it_is_while_the_manager_answers_no_more_of_its_requests() -> None:
    *_, refused = follow("hello", "429", "wait")
    assert refused["morphed"] == []
    assert refused["state"] == "lost"
    assert refused["text"].startswith("too many requests at ")
    assert "Is equipoise manager running?" in follow("hello", "500", "wait")[-1]["text"]


def test_a_range_without_values_is_not_told_of_with_those_of_another() -> None:
    full, empty = run("full", "empty")
    assert "violated in 3 of 10 intervals" in full["range"]
    assert "No response times in this range." in empty["words"]
    assert empty["range"] == ""


def test_answers_are_shown_though_they_take_longer_than_changes_are_apart() -> None:
    [shown] = run("often")
    assert shown["drawn"] >= 3


def test_an_answer_that_never_comes_is_not_the_last_one() -> None:
    full, hung, after = run("full", "hang", "full")
    assert "No values: " in hung["words"]
    assert after["drawn"] > full["drawn"]


@pytest.mark.parametrize("query", ["?since=yesterday&until=now", "?since=2026-01-01T00:00:00Z", "?range=much"])
def test_a_range_that_is_none_is_the_last_hour(query: str) -> None:
    [shown] = run("full", query=query)
    assert shown["drawn"] >= 1
    assert shown["failed"] == []


WHAT_IF = """
import { readFile } from "node:fs/promises";
const weights = { at: ["2026-01-01T00:00:05Z"], vms: [{ vm: "web", recorded: [1], replayed: [2] }], sla: ["violated"],
    application: "shop", interval_s: 5 };
const place = { dataset: { weights: JSON.stringify(weights) } };
globalThis.document = { querySelectorAll: () => [place], addEventListener() {} };
globalThis.TimeChart = class { show(_lines, data) { console.log(JSON.stringify(data)); } };
const source = await readFile(process.argv[1], "utf8");
await import(`data:text/javascript,${encodeURIComponent(source.replace(/^import .*/m, ""))}`);
"""


def test_a_what_if_of_one_interval_shows_that_it_was_violated() -> None:
    assert NODE is not None
    command = [NODE, "--input-type=module", "-e", WHAT_IF, str(FOLDER / "what_if.js")]
    shown = json.loads(subprocess.run(command, capture_output=True, check=True, text=True, timeout=200).stdout)
    [[since, until]] = shown["spans"]
    assert (since, until) == tuple(shown["range"])
    assert until - since == 5


def test_weights_of_hundreds_of_vms_are_drawn() -> None:
    [shown] = run("many")
    assert shown["failed"] == []
