"""Whole agents that mean ill, go away, or have another name now, and what everybody else sees of them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import tarfile
import time
import unicodedata
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from manager.cli.main import main
from tests.api.conftest import record, report
from tests.e2e.service import AGENT_TOKEN_FILE, HOST, Service
from tests.ports import reserved_ports
from tests.security.floods import probe_of

# A command leaves its connection to the end of its process, and here that is the test's.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning"
)

WAIT_S = 120.0
HOSTILE = "[/x] [bold]met[/bold] \x1b]0;title\x07\x1b[2J \x9b31m \u202egnp.exe \u2028forged"
SCENARIO = """
summary = "One application"
pcpus = 2
duration_s = 3600
[[applications]]
name = "shop"
response_time_ms = 100
tiers = [{ name = "web", vcpus = 1, service = "lognormal", mean_ms = 5, cv = 0.5 }]
load = [{ rate_rps = 20 }]
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A manager."""
    with contextlib.closing(Service(tmp_path_factory.mktemp("manager"))) as made:
        made.prepare()
        yield made


@pytest.mark.parametrize("words", [["decisions"], ["decisions", "--vm", "web-1"]])
def test_text_of_agents_is_printed_as_text(service: Service, words: list[str]) -> None:
    decision = record(1, host=HOST, reason=HOSTILE, detail=HOSTILE, before=HOSTILE[:60], after="[/x]")
    token = service.token(AGENT_TOKEN_FILE)
    service.ask("POST", f"/hosts/{HOST}/report", report(decisions=[decision]), token)
    soon(lambda: service.ask("GET", "/decisions")["items"])
    printed = command(service, *words)
    assert (printed.exit_code, printed.exception) == (0, None)
    assert "[/x]" in printed.output
    assert {repr(one) for one in printed.output if unicodedata.category(one) in {"Cc", "Cf", "Zl"}} <= {r"'\n'"}


def command(service: Service, *words: str) -> Result:
    """What a command prints on a wide terminal."""
    environ = {"EQUIPOISE_MANAGER_URL": service.url, "EQUIPOISE_TOKEN": service.token(), "COLUMNS": "1000"}
    return CliRunner(env=environ).invoke(main, words)


def test_no_secret_that_an_agent_wrote_is_in_a_bundle(service: Service, tmp_path: Path) -> None:
    secrets = ["eqj_JoinToken-of-somebody_123456789", "t0ken-in-a-parameter", "p4ss@with-an-at"]
    text = f"{secrets[0]} https://h.example.org/x?token={secrets[1]} https://me:{secrets[2]}@h.example.org/"
    event = {"id": "00000000-0000-4000-9000-000000000001", "at": "2026-03-01T12:00:00Z", "host": HOST}
    event |= {"severity": "error", "kind": "failed", "message": text, "vm": None}
    service.ask("POST", f"/hosts/{HOST}/report", report(events=[event]), service.token(AGENT_TOKEN_FILE))
    path = tmp_path / "bundle.tar.gz"
    made = command(service, "support-bundle", f"--state-dir={tmp_path}", f"--output={path}")
    assert made.exit_code == 0, made.output
    with tarfile.open(path) as bundle:
        parts = {part.name: bundle.extractfile(part) for part in bundle}
        texts = {name: file.read().decode(errors="replace") for name, file in parts.items() if file}
    assert [text for text in texts.values() if event["id"] in text], "the event is in it"
    assert {(name, secret) for name, text in texts.items() for secret in secrets if secret in text} == set()


def test_a_bundle_is_written_through_no_link_of_somebody_else(service: Service, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("precious")
    (tmp_path / "bundle.tar.gz").symlink_to(tmp_path / "theirs")
    made = command(service, "support-bundle", f"--state-dir={tmp_path}", f"--output={tmp_path}/bundle.tar.gz")
    assert made.exit_code == 1
    assert (tmp_path / "theirs").read_text() == "precious"


@contextlib.contextmanager
def agent(service: Service, folder: Path, **changed: object) -> Iterator[int]:
    """A simulated one, with a state directory of its own and ``changed`` settings; the port of its metrics page."""
    folder.mkdir(exist_ok=True)
    (folder / "shop.toml").write_text(SCENARIO)
    with reserved_ports(1) as [port]:
        settings = {
            "state_dir": folder / "state",
            "manager_url": service.url,
            "token_file": service.folder / "state" / AGENT_TOKEN_FILE,
            "agent_listen_port": port,
            "host_name": HOST,
            "interval_s": 0.25,
            "sync_s": 0.2,
        } | changed
        environ = {name: text for name, text in os.environ.items() if not name.startswith("EQUIPOISE_")}
        environ |= {f"EQUIPOISE_{name.upper()}": str(value) for name, value in settings.items()}
        command = [sys.executable, "-m", "manager.cli", "agent", "--simulate", str(folder / "shop.toml")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        try:
            probe = probe_of(port, "/metrics")
            soon(lambda: probe() == 200)
            yield port
        finally:
            process.kill()
            process.wait()


def soon(what: object) -> None:
    end_s = time.monotonic() + WAIT_S
    while not what():  # type: ignore[operator]
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_a_second_agent_of_one_host_name_changes_nothing_of_the_firsts_and_is_told_of(
    service: Service, tmp_path: Path
) -> None:
    def tick() -> int:
        ticks = [host["tick"] for host in service.ask("GET", "/hosts")["items"] if host["name"] == HOST]
        return max((shown["number"] for shown in ticks if shown), default=0)

    with agent(service, tmp_path / "first"):
        soon(lambda: tick() >= 8)
        with agent(service, tmp_path / "second"):
            numbers = [tick()]
            while numbers[-1] < 20 and len(numbers) < 200:
                numbers.append(tick())
                time.sleep(0.05)
    assert numbers == sorted(numbers), "the host is what one agent says"
    messages = [one["message"] for one in service.ask("GET", f"/events?host={HOST}&limit=100")["items"]]
    assert any("is served by agent" in message for message in messages)


def waiting(folder: Path) -> int:
    """How many items wait for a manager in an agent's outbox that are said of a host."""
    file = folder / "state" / "outbox.db"
    if not file.exists():
        return 0
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as outbox:
        return outbox.execute("SELECT count(*) FROM waiting WHERE kind IN ('event', 'decision')").fetchone()[0]


def test_a_host_that_got_another_name_reports_on(service: Service, tmp_path: Path) -> None:
    """What waited for the manager under the former name must not have every report refused."""
    renamed, token_file = "renamed", tmp_path / "token"
    body = {"name": renamed, "role": "host", "host": renamed}
    token_file.write_text(service.ask("POST", "/tokens", body)["token"])
    with (
        reserved_ports(1) as [nobody],
        agent(service, tmp_path / "agent", manager_url=f"http://127.0.0.1:{nobody}"),
    ):
        soon(lambda: waiting(tmp_path / "agent"))

    def ticks() -> list[int]:
        hosts = {one["name"]: one["tick"] for one in service.ask("GET", "/hosts")["items"]}
        return [hosts[renamed]["number"]] if hosts.get(renamed) else []

    with agent(service, tmp_path / "agent", host_name=renamed, token_file=token_file):
        soon(ticks)
        [first] = ticks()
        soon(lambda: ticks()[0] >= first + 3)
    assert f"renamed: this host was {HOST} and is renamed now" in command(service, "status").output
    assert waiting(tmp_path / "agent") <= 1, "and what is its own was delivered"


def page(service: Service, path: str) -> str:
    """A page of the dashboard, as an administrator's browser gets it."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    form = urllib.parse.urlencode({"name": "local-admin", "password": service.token(), "next": path})
    with opener.open(f"{service.url}/sign-in", form.encode()) as answer:
        return answer.read().decode()


def test_a_host_is_silent_on_pages_when_the_interface_says_so(service: Service) -> None:
    """With intervals of a second that is after 6 s, whatever ``stale_s`` is."""
    service.ask("POST", "/hosts/quiet/report", report())
    soon(lambda: service.ask("GET", "/hosts/quiet")["silent"])
    assert "Silent: last seen" in page(service, "/hosts/quiet")
    service.ask("POST", "/hosts/quiet/report", report())
    soon(lambda: not service.ask("GET", "/hosts/quiet")["silent"])
    shown = page(service, "/hosts/quiet")
    assert "quiet" in shown
    assert "Silent: last seen" not in shown
