"""Whole processes on a simulated host whose clock is set: by libfaketime, which fakes the time of day of a process.

The monotonic clocks go on as they are, as in the kernel when somebody sets the time.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from sqlalchemy import select

from manager.cli.main import main
from manager.model.packed_records import moment_of, unpack_ticks
from manager.store.database import open_database
from manager.store.models import ApplicationRow
from manager.store.pack_models import TickPackRow
from manager.store.windows import list_windows
from tests.e2e.service import HOST, Service
from tests.plain_http import plain_client

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
pytestmark = [
    pytest.mark.skipif(not LIBRARIES and os.geteuid() != 0, reason="needs Debian's package faketime"),
    # A command leaves its connection to the end of its process, and here that is the test's.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning"),
]

INTERVAL_S = 0.25
WAIT_S = 200.0
HOUR_S, YEAR_S = 3600, 365 * 86_400
SCENARIO = """
summary = "One application beside batch"
pcpus = 2
duration_s = 3600
[[applications]]
name = "shop"
response_time_ms = 100
tiers = [{ name = "web", vcpus = 1, service = "lognormal", mean_ms = 5, cv = 0.5 }]
load = [{ rate_rps = 100 }]
[[batch]]
name = "batch"
vms = 1
"""
HANGING = """
import sys, threading
from pathlib import Path
pause = threading.Event().wait  # libfaketime 0.9.10 refuses time.sleep now and then
def wait():
    while "manager.loop.agent" not in sys.modules:
        pause(0.05)
    from manager.loop.tick import ControlLoop
    tick = ControlLoop.tick
    def hang(loop, *given, **named):
        while Path({file!r}).exists():
            pause(0.05)
        return tick(loop, *given, **named)
    ControlLoop.tick = hang
if sys.argv[-1:] == ["agent"] or "agent" in sys.orig_argv:
    threading.Thread(target=wait, daemon=True).start()
"""


class Clocked(Service):
    """A service whose processes have a time of day of their own: ``set`` says by how many seconds it is off."""

    def __init__(self, folder: Path) -> None:
        scenario = folder / "shop.toml"
        scenario.write_text(SCENARIO)
        super().__init__(folder, str(scenario), interval_s=INTERVAL_S)
        self._plain = {
            **self._environ,
            "EQUIPOISE_MIN_SAMPLES": "5",
            "EQUIPOISE_SILENT_INTERVALS": "24",
            "PYTHONPATH": str(folder),
        }
        self.hung = folder / "hang"
        (folder / "sitecustomize.py").write_text(HANGING.format(file=str(self.hung)))
        self._http = plain_client()
        self.agent_url = f"http://127.0.0.1:{self._environ['EQUIPOISE_AGENT_LISTEN_PORT']}"

    def start(self, command: str) -> None:
        self.set(command, 0)
        self._environ = self._plain | {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self.folder / f"clock-{command}"),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        super().start(command)

    def set(self, command: str, off_s: int) -> None:
        """By replacement: a clock is never half written."""
        new = self.folder / "clock.new"
        new.write_text(f"{off_s:+d}")
        new.replace(self.folder / f"clock-{command}")

    def close(self) -> None:
        """Without waiting for what they would put back: the host is simulated. Those that `run` started end with it."""
        for command in list(self._processes):
            self.kill(command)
        self._http.close()
        super().close()

    def signal(self, command: str, number: signal.Signals) -> None:
        self._processes[command].send_signal(number)

    def tick(self) -> int:
        return int(self.ask("GET", f"/hosts/{HOST}")["tick"]["number"])

    def jobs(self) -> float:
        page = self._http.get(f"{self.url}/metrics").text
        return sum(map(float, re.findall(r'equipoise_jobs_total\{job="silent-hosts",result="done"\} (\S+)', page)))

    def metric(self, pattern: str) -> float:
        """A metric of the agent."""
        found = re.findall(rf"^{pattern} (\S+)$", self._http.get(f"{self.agent_url}/metrics").text, re.MULTILINE)
        return float(found[0]) if found else math.nan

    def judged(self) -> bool:
        """Whether the agent knows by fresh response times how its application does."""
        with contextlib.suppress(httpx.TransportError):  # it does not listen yet
            return self._judged()
        return False

    def _judged(self) -> bool:
        no_data = self.metric(r'equipoise_application_sla_state\{application="shop",state="no_data"\}')
        age_s = self.metric(r'equipoise_application_window_age_seconds\{application="shop"\}')
        return no_data == 0 and age_s <= 2 * INTERVAL_S

    def events(self, kind: str, host: str = HOST) -> list[str]:
        found = self.ask("GET", f"/events?host={host}&limit=500")["items"]
        return [one["message"] for one in found if one["kind"] == kind]

    def stalls(self) -> int:
        return len(self.events("loop-stalled"))

    def command(self, *words: str) -> str:
        """What a command prints that ends well."""
        ended = CliRunner(env={**self._plain, "EQUIPOISE_TOKEN": self.token()}).invoke(main, words)
        assert ended.exit_code == 0, ended.output
        return ended.output

    def history(self, until: str) -> tuple[int, int]:
        """Ticks and response times that are dated no later."""
        url = f"sqlite:///{self.folder}/state/equipoise.db"
        with closing(open_database(url, 1)) as database, database.reading() as session:
            dates = [
                moment_of(tick.at_us)
                for body in session.scalars(select(TickPackRow.body))
                for tick in unpack_ticks(body)
            ]
            applications = session.scalars(select(ApplicationRow)).all()
            windows = [one for row in applications for one in list_windows(session, row, None, None, 100_000)]
        times = sum(window.histogram.count for slot, window in windows if f"{slot:%Y-%m-%d %H:%M:%S.%f}" <= until)
        return sum(f"{at:%Y-%m-%d %H:%M:%S.%f}" <= until for at in dates), times


def soon(what: Callable[[], object], why: str) -> float:
    """Wait until it is so, and tell for how many seconds."""
    begin_s = time.monotonic()
    while not what():
        assert time.monotonic() - begin_s < WAIT_S, why
        time.sleep(0.03)
    return time.monotonic() - begin_s


@contextmanager
def running(folder: Path, *commands: str) -> Iterator[Clocked]:
    service = Clocked(folder)
    with closing(service):
        if commands == ("run",):
            service.start("run")
        else:
            service.prepare()
            service.start("agent")
        service.until(lambda client: service.judged() and client.get(f"/hosts/{HOST}")["tick"])
        yield service


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clocked]:
    """`equipoise run`."""
    with running(tmp_path_factory.mktemp("run"), "run") as service:
        yield service


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clocked]:
    """Manager and agent, each with a clock of its own."""
    with running(tmp_path_factory.mktemp("apart"), "manager", "agent") as service:
        yield service


def goes_on(service: Clocked) -> None:
    """Ticks, jobs and judgement: soon, and again."""
    number, jobs = service.tick(), service.jobs()
    took_s = soon(lambda: service.tick() >= number + 2, "ticks go on")
    # Two intervals and what a busy machine and the exchange with the manager take; without them it would be hours.
    assert took_s < 2 * INTERVAL_S + 120
    soon(lambda: service.jobs() >= jobs + 2, "the manager's jobs go on")
    soon(service.judged, "response times count again")


def words_of(jump_s: int) -> str:
    length = "7200 s (2 h)" if abs(jump_s) == 2 * HOUR_S else f"{YEAR_S} s (365 days)"
    return f"the wall clock was set {length} {'ahead' if jump_s > 0 else 'back'}"


# Where the clock is after it jumped, and by how much it did.
BACK_AND_AGAIN = [(-2 * HOUR_S, -2 * HOUR_S), (0, 2 * HOUR_S), (-YEAR_S, -YEAR_S), (0, YEAR_S)]
AHEAD_AND_BACK = [(2 * HOUR_S, 2 * HOUR_S), (0, -2 * HOUR_S), (YEAR_S, YEAR_S), (0, -YEAR_S)]


def test_equipoise_run_goes_on_wherever_its_clock_jumps(whole: Clocked) -> None:
    goes_on(whole)
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    soon(lambda: min(whole.history(until)) > 0, "both are stored")
    before = whole.history(until)
    silences = whole.events("host-silent")
    for off_s, jump_s in BACK_AND_AGAIN:
        whole.set("run", off_s)
        goes_on(whole)
        for host in (HOST, "manager"):
            soon(lambda: any(words_of(jump_s) in one for one in whole.events("clock-jumped", host)), f"{host} tells")  # noqa: B023
        whole.command("release")
        assert whole.ask("GET", f"/hosts/{HOST}")["tick"]["owned_knobs"] == 0
        whole.command("enforce")
        assert whole.ask("GET", f"/hosts/{HOST}")["silent"] is False
        assert all(kept >= was for kept, was in zip(whole.history(until), before, strict=True)), "history is kept"
    assert whole.events("host-silent") == silences


def test_a_loop_that_stands_still_is_told_of_wherever_one_may_look(whole: Clocked) -> None:
    stalls, ends = whole.stalls(), len(whole.events("loop-resumed"))
    whole.hung.touch()
    soon(lambda: whole.stalls() > stalls, "an event tells of it")
    soon(lambda: whole.ask("GET", f"/hosts/{HOST}")["tick"]["stalled_s"], "so does the interface")
    assert whole.metric("equipoise_agent_tick_age_seconds") > 3 * INTERVAL_S
    assert whole.metric("equipoise_agent_loop_stalled") == 1
    assert f"{HOST}: no tick for" in whole.command("status")
    assert len(whole.events("loop-resumed")) == ends
    whole.hung.unlink()
    soon(lambda: len(whole.events("loop-resumed")) > ends, "and of its end")
    soon(lambda: whole.ask("GET", f"/hosts/{HOST}")["tick"]["stalled_s"] is None, "ticks go on")
    assert f"{HOST}: no tick for" not in whole.command("status")
    goes_on(whole)


def test_an_agent_goes_on_wherever_its_hosts_clock_jumps(apart: Clocked) -> None:
    silences = apart.events("host-silent")
    for off_s, jump_s in AHEAD_AND_BACK:
        apart.set("agent", off_s)
        goes_on(apart)
        soon(lambda: any(words_of(jump_s) in one for one in apart.events("clock-jumped")), "an event tells of it")  # noqa: B023
        if jump_s < 0:
            apart.command("release")
            apart.command("enforce")
    assert apart.events("host-silent") == silences
    assert apart.events("clock-jumped", "manager") == []


def test_a_manager_and_its_hosts_go_on_wherever_its_clock_jumps(apart: Clocked) -> None:
    silences = apart.events("host-silent")
    for off_s, jump_s in AHEAD_AND_BACK[:2] + BACK_AND_AGAIN[2:]:
        apart.set("manager", off_s)
        goes_on(apart)
        soon(lambda: any(words_of(jump_s) in one for one in apart.events("clock-jumped", "manager")), "an event")  # noqa: B023
        if jump_s < 0:
            apart.command("observe")
            apart.command("enforce")
    assert apart.events("host-silent") == silences


def test_a_silent_host_is_found_although_the_managers_clock_was_set_back(apart: Clocked) -> None:
    apart.set("manager", -2 * HOUR_S)
    apart.signal("agent", signal.SIGSTOP)
    try:
        soon(lambda: apart.ask("GET", f"/hosts/{HOST}")["silent"], "it is silent within seconds, not hours")
    finally:
        apart.signal("agent", signal.SIGCONT)
        apart.set("manager", 0)
    soon(lambda: not apart.ask("GET", f"/hosts/{HOST}")["silent"], "and back")


def test_what_a_process_sees_of_suspend(apart: Clocked) -> None:
    """Stopped, with the clock ahead afterwards. A real suspend also shows in CLOCK_BOOTTIME: test_oversight.py."""
    soon(lambda: apart.stalls() == len(apart.events("loop-resumed")), "none is under way, which would go on")
    before = apart.stalls()
    apart.signal("agent", signal.SIGSTOP)
    apart.set("agent", HOUR_S)
    age_s = time.monotonic() + 1.5
    soon(lambda: time.monotonic() > age_s, "a while passes")
    apart.signal("agent", signal.SIGCONT)
    goes_on(apart)
    soon(
        lambda: any("set 3600 s (60 min) ahead" in one for one in apart.events("clock-jumped")), "the clock is told of"
    )
    soon(lambda: apart.stalls() > before, "and that nothing ticked")
    apart.set("agent", 0)
    goes_on(apart)
