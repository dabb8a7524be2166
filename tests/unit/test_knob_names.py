"""What settings are called: one name everywhere, alike for no two settings of a VM."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from manager.cli import main, status_commands
from manager.control.story import StoryChange, sentence
from manager.model.knob_text import knob_name
from manager.model.knobs import Knob
from manager.model.records import OutcomeKind
from manager.protocol.client import ManagerClient
from tests.fakes.host import FakeHost
from tests.fakes.manager import Wire

NUMBERED = [knob for knob in Knob if knob.spec.scope.numbered]


def test_names_have_a_number_where_there_are_several() -> None:
    assert [knob_name(knob, 3) for knob in (Knob.WEIGHT, "slice", Knob.IOTHREAD_PIN)] == [
        "CPU weight",
        "vCPU 3 slice",
        "I/O thread 3 pin",
    ]
    assert len({knob_name(knob, 0) for knob in Knob}) == len(Knob)


def test_no_two_settings_of_a_host_are_called_alike() -> None:
    host = FakeHost()
    host.boot("web", 2)
    host.boot("hog", 1)
    keys = list(host.settings())
    assert len({(key.uuid, knob_name(key.knob, key.index)) for key in keys}) == len(keys) > 5


@pytest.mark.parametrize("knob", NUMBERED)
def test_the_story_tells_the_same_settings_apart(knob: Knob) -> None:
    def told(index: int) -> str:
        return sentence("kvm1", "web", [StoryChange("", knob, index, "1", "2", "why", OutcomeKind.APPLIED)], None)

    assert len({told(index) for index in range(3)}) == 3


def decision(knob: Knob, index: int) -> dict[str, Any]:
    told = {"at": "2026-03-01T12:00:00Z", "host": "kvm1", "vm": "web", "before": "0", "after": "1"}
    return told | {"knob": knob, "index": index, "outcome": "applied", "reason": "why", "detail": ""}


def test_decisions_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [decision(knob, index) for knob in Knob for index in range(2)]

    def handle(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=json.dumps({"items": items, "next": None}))

    client = ManagerClient("http://manager", "", Wire(handle))
    monkeypatch.setattr(status_commands, "connect", lambda _settings: client)
    result = CliRunner().invoke(main, ["decisions"], env={"COLUMNS": "250"})
    client.close()
    assert result.exit_code == 0, result.output
    for one in items:
        name = knob_name(one["knob"], one["index"])
        lines = [line for line in result.output.splitlines() if re.search(f"│ {re.escape(name)} +│", line)]
        assert len(lines) == (1 if one["knob"] in NUMBERED else 2), name
