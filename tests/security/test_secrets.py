"""Secrets stay where they belong: in no log, error, metric, list or dump, whatever goes wrong."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from sqlalchemy import text

from manager.cli import main
from manager.errors import EquipoiseError, ManagerUnavailable
from manager.protocol.client import ManagerClient
from manager.store.database import open_database
from tests.api.conftest import Api, make_api
from tests.plain_http import plain_client
from tests.ports import reserved_ports
from tests.web.desk import Desk

MARK = "mArKeD"
PASSWORD = f"{MARK}-password-0123456789"


def test_what_is_sent_in_a_wrong_place_is_not_quoted(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """Passwords and tokens in each field where somebody may put them by mistake."""
    caplog.set_level(logging.DEBUG)
    api, answers = desk.api, []
    for method, path, body in (
        ("POST", "/users", {"name": "a", "role": "viewer", "password": MARK}),  # too short
        ("POST", "/users", {"name": "a", "role": "viewer", "password": [PASSWORD]}),
        ("PUT", "/users/a/password", {"password": PASSWORD, "current_password": {"x": PASSWORD}}),
        ("PUT", "/users/a/password", {"password": PASSWORD * 20}),
    ):
        answers.append(api.call(method, path, body).get_data(as_text=True))
    for kind in ("Bearer", "Basic", "Nonsense"):
        response = api.call("GET", "/vms", role="", Authorization=f"{kind} {PASSWORD}")
        answers.append(response.get_data(as_text=True))
    browser = desk.browser(None)
    browser.client.set_cookie("equipoise_session", PASSWORD)
    answers += [browser.get(path).source for path in ("/", "/sign-in", "/nowhere")]
    answers.append(browser.post("/sign-in", {"name": "nobody", "password": PASSWORD}).source)
    answers.append(api.call("GET", "/audit").get_data(as_text=True))
    answers.append(api.call("GET", "//metrics", role="").get_data(as_text=True))
    assert MARK not in "".join(answers)
    assert MARK not in caplog.text


def test_a_bug_and_a_database_that_fails_tell_nothing_of_the_request(
    desk: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traceback in the log has no values of variables."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("manager.api.access_routes.create_user", lambda *_arguments: 1 / 0)
    body = {"name": "a", "role": "viewer", "password": PASSWORD}
    response = desk.api.call("POST", "/users", body)
    assert (response.status_code, "ZeroDivisionError" in caplog.text) == (500, True)
    secret = desk.api.secrets["admin"]
    for told in (response.get_data(as_text=True), caplog.text, desk.api.call("GET", "//metrics", role="").text):
        assert MARK not in told
        assert secret not in told


def test_the_password_of_the_database_is_not_told(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"postgresql://equipoise:{PASSWORD}@127.0.0.1:9/equipoise"
    api = make_api(open_database(url))
    response = api.call("GET", "/vms", role="", Authorization="Bearer x")
    assert response.status_code == 503
    scraped = api.call("GET", "//metrics", role="").text
    assert "equipoise_database_up 0.0" in scraped
    runner = CliRunner()
    outputs = [caplog.text, response.text, scraped]
    state = ["--state-dir", str(tmp_path)]
    for given in (url, f"postgresql://db/x?user=a&password={PASSWORD}", f"mysql://root:{PASSWORD}@db/x"):
        outputs.append(runner.invoke(main, ["config", "--database-url", given]).output)
        outputs.append(runner.invoke(main, ["config", "--json", "--database-url", given]).output)
    for given in (url, f"mysql://root:{PASSWORD}@db/x", f"postgresql:/{PASSWORD}"):
        ended = runner.invoke(main, ["db", "current", "--database-url", given, *state])
        assert ended.exit_code == 1
        outputs.append(ended.output)
    assert "***" in outputs[3]
    assert MARK not in "".join(outputs)


def test_a_password_on_the_command_line_is_warned_of(tmp_path: Path) -> None:
    url = f"postgresql://equipoise:p@{PASSWORD}@127.0.0.1:9/equipoise"
    runner, warning = CliRunner(), "which all users see in the list of processes"
    given = runner.invoke(main, ["config", "--json", "--database-url", url])
    assert warning in given.stderr
    assert MARK not in given.output
    quiet = runner.invoke(main, ["config", "--json"], env={"EQUIPOISE_DATABASE_URL": url})
    assert (warning in quiet.output, MARK in quiet.output) == (False, False)


def test_a_token_that_others_may_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "admin.token").write_text(PASSWORD)
    for mode, warned in ((0o644, True), (0o600, False)):
        caplog.clear()
        (tmp_path / "admin.token").chmod(mode)
        command = ["status", "--state-dir", str(tmp_path), "--manager-url", "http://127.0.0.1:9"]
        assert CliRunner().invoke(main, command).exit_code == 1
        assert ("others may read the token" in caplog.text) is warned
        assert MARK not in caplog.text


def test_values_of_database_statements_are_not_told(sqlite_api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """A statement that fails is logged with its values unless the engine is told otherwise."""
    caplog.set_level(logging.DEBUG, "sqlalchemy")
    with pytest.raises(Exception, match="no such table") as failed, sqlite_api.database.reading() as session:
        session.execute(text("SELECT 1 FROM unknown WHERE a = :secret"), {"secret": PASSWORD})
    assert MARK not in "".join(traceback.format_exception(failed.value))
    assert MARK not in caplog.text


def test_secrets_are_kept_as_hashes_alone(sqlite_api: Api) -> None:
    made = sqlite_api.ok("POST", "/tokens", {"name": "new", "role": "viewer"})["token"]
    sqlite_api.ok("POST", "/users", {"name": "ada", "role": "viewer", "password": PASSWORD})
    with sqlite_api.database.reading() as session:
        connection = session.connection().connection.driver_connection
        assert connection is not None
        dump = "\n".join(connection.iterdump())
    assert MARK not in dump
    assert made not in dump
    assert "scrypt:" in dump


def test_the_agent_and_the_command_line_do_not_tell_their_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = ManagerClient("http://127.0.0.1:9", PASSWORD)
    with pytest.raises(ManagerUnavailable) as refused:
        client.get("/vms")
    with pytest.raises(EquipoiseError) as other:
        ManagerClient(f"ftp://user:{MARK}@host", PASSWORD)
    assert PASSWORD not in f"{refused.value} {caplog.text} {other.value}"
    assert MARK not in repr(client)


@dataclass(frozen=True)
class Process:
    """A manager, with all that it may log."""

    url: str
    state: Path
    log: Path


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_ports(1) as [one]:
        yield one


@pytest.fixture
def process(tmp_path: Path, port: int) -> Iterator[Process]:
    log = tmp_path / "log"
    environ = {
        **os.environ,
        "EQUIPOISE_STATE_DIR": str(tmp_path / "state"),
        "EQUIPOISE_LISTEN_PORT": str(port),
        "EQUIPOISE_LOG_LEVEL": "debug",
    }
    with log.open("wb") as output, plain_client() as client:
        running = subprocess.Popen([sys.executable, "-m", "manager.cli", "manager"], env=environ, stderr=output)
        url = f"http://127.0.0.1:{port}"
        try:
            deadline_s = time.monotonic() + 60
            while True:
                try:
                    client.get(f"{url}/api/v1/health")
                    break
                except httpx.TransportError:
                    assert time.monotonic() < deadline_s, log.read_text()
                    time.sleep(0.1)
            yield Process(url, tmp_path / "state", log)
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(30)


def test_a_manager_that_logs_everything_logs_no_secret(process: Process) -> None:
    made = CliRunner().invoke(
        main, ["token", "create", "--role", "admin", "--name", "me", "--state-dir", str(process.state)]
    )
    token = made.output.strip().splitlines()[-1]
    with httpx.Client(base_url=process.url, headers={"Authorization": f"Bearer {token}"}) as client:
        body = {"name": "ada", "role": "viewer", "password": PASSWORD}
        assert client.post("/api/v1/users", json=body).status_code == 201
        assert client.post("/api/v1/users", json=body).status_code == 409
        assert client.post("/api/v1/users", content=json.dumps(body)[:-1]).status_code in {400, 415}
        made_token = client.post("/api/v1/tokens", json={"name": "new", "role": "viewer"}).json()["token"]
        assert client.get("/api/v1/vms", headers={"Authorization": f"Bearer {PASSWORD}"}).status_code == 401
    with httpx.Client(base_url=process.url) as browser:
        form = {"name": "ada", "password": PASSWORD}
        assert browser.post("/sign-in", data=form).status_code == 303
        session = browser.cookies["equipoise_session"]
        assert browser.post("/account", data={**form, "csrf_token": PASSWORD}).status_code == 403
        assert browser.get("/nowhere").status_code == 404
        metrics = browser.get("/metrics").text
    logged = process.log.read_text()
    assert "listening on http://" in logged
    for secret in (MARK, token, made_token, session):
        assert secret not in logged
        assert secret not in metrics
