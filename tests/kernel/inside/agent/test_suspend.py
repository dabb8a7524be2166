"""A whole agent on a host that is suspended to memory, and woken by the alarm of its real-time clock."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import sqlite3
import time
import urllib.request
from contextlib import closing
from pathlib import Path

from manager.clocks import Times, read_times
from tests.host.conftest import until
from tests.kernel.inside.agent.conftest import INTERVAL_S, METRICS_PORT, STALE_S, Agent, loads

ASLEEP_S = 10
POLL_S = 0.1
WAKE_ALARM = Path("/sys/class/rtc/rtc0/wakealarm")
POWER_STATE = Path("/sys/power/state")


class Watched:
    """What an agent says of itself, and what it is told of response times."""

    def __init__(self, agent: Agent) -> None:
        self._folder = agent.folder

    def post(self) -> None:
        """Response times of now, which keep the SLA."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        with closing(connection):
            connection.sock.connect(str(self._folder / "run/push.sock"))
            body = json.dumps({"times_ms": [5.0] * 50})
            connection.request("POST", "/samples/shop", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()

    def metric(self, name: str) -> float:
        time.sleep(POLL_S)  # the agent refuses who asks all the time
        with urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics") as answer:
            found = re.search(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def ticks(self) -> float:
        return self.metric("equipoise_agent_tick_seconds_count")

    def sla_is(self, state: str) -> bool:
        return self.metric(f'equipoise_application_sla_state{{application="shop",state="{state}"}}') == 1

    def waiting(self, kind: str) -> list[dict[str, str]]:
        """What the manager is still to be told of, oldest first."""
        with closing(sqlite3.connect(f"file:{self._folder}/outbox.db?mode=ro", uri=True)) as database:
            rows = database.execute("SELECT body FROM waiting WHERE kind = ? ORDER BY seq", [kind]).fetchall()
        return [json.loads(body) for (body,) in rows]

    def jumps(self) -> list[str]:
        """The events of clocks that jumped."""
        return [event["message"] for event in self.waiting("event") if event["kind"] == "clock-jumped"]


def suspend() -> tuple[Times, Times]:
    """Suspend to memory until the alarm, ``ASLEEP_S`` after it is set; what clocks said before, and say after."""
    assert "mem" in POWER_STATE.read_text().split()
    before = read_times()
    WAKE_ALARM.write_text(f"+{ASLEEP_S}")
    POWER_STATE.write_text("mem")  # returns after the resume
    return before, read_times()


def test_an_agent_survives_suspend(agent: Agent) -> None:
    """One story, since an emulated machine takes half a minute to start an agent."""
    settings, watched = [vm.settings() for vm in agent.vms], Watched(agent)
    agent.start()
    until(agent.controls, "the warp is in force")
    watched.post()
    until(lambda: watched.sla_is("met"), "response times count")
    watched.post()
    decisions, loaded = watched.waiting("decision"), loads()
    assert decisions and not watched.jumps()

    before, resumed = suspend()

    slept_s = (resumed.boot_s - before.boot_s) - (resumed.monotonic_s - before.monotonic_s)
    assert slept_s > STALE_S, "the machine was suspended: this clock went on, the monotonic one stood still"
    ticks = watched.ticks()
    until(lambda: watched.ticks() > ticks, "ticks go on")
    assert time.monotonic() - resumed.monotonic_s < 2 * INTERVAL_S
    assert watched.sla_is("no_data"), "response times from before the suspend are old"
    until(watched.jumps, "an event tells of it")
    [message] = watched.jumps()
    found = re.fullmatch(r"resumed after ([\d.]+) s of suspend; control goes on", message)
    assert found is not None and abs(float(found[1]) - slept_s) < 1, (message, slept_s)
    assert watched.metric("equipoise_agent_clock_jumps_total") == 1
    watched.post()
    until(lambda: watched.sla_is("met"), "response times count again")
    assert watched.waiting("decision")[: len(decisions)] == decisions, "nothing is lost"
    assert agent.controls(), "what was set stands"
    assert loads() == loaded, "and the scheduler was not thrown out"
    assert agent.end(signal.SIGTERM) == 0, agent.log
    assert not agent.scheduler.active, agent.log
    assert [vm.settings() for vm in agent.vms] == settings, agent.log
