"""The most sources that an agent runs, however many a manager assigns."""

from __future__ import annotations

import pytest

from manager.model.source import NginxSyslog, SourceState
from manager.telemetry import source_thread
from tests.telemetry.conftest import Running, shop, until


def test_what_is_beyond_the_most_is_not_run_and_says_so(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_thread, "MOST_SOURCES", 2)
    running.configure(shop(*(NginxSyslog(f"log-{number}") for number in range(3))))
    until(lambda: running.status("log-0").state is not SourceState.FAILING, "the first run")
    beyond = running.status("log-2")
    assert beyond.state is SourceState.FAILING
    assert beyond.detail == "this agent runs at most 2 sources, and is assigned 3"
    running.configure(shop(NginxSyslog("log-1"), NginxSyslog("log-2")))
    assert running.status("log-2").state is not SourceState.FAILING
