"""The commands that need neither a manager nor a host."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from manager.cli import main
from manager.cli.options import environment
from manager.cli.run_command import url_of_manager
from manager.settings import Value, load_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EQUIPOISE_STATE_DIR", str(tmp_path / "state"))
    for name in ("EQUIPOISE_CONFIG", "EQUIPOISE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_config_says_what_is_in_force_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "e.toml"
    file.write_text("interval_s = 2\nlisten_port = 9000\n")
    monkeypatch.setenv("EQUIPOISE_LISTEN_PORT", "9001")
    found = json.loads(call("config", "--config", str(file), "--sync-s", "0.5", "--json").stdout)
    assert (found["interval_s"]["value"], found["interval_s"]["source"]) == (2.0, str(file))
    port = found["listen_port"]
    assert (port["value"], port["source"]) == (9001, "environment EQUIPOISE_LISTEN_PORT")
    assert (found["sync_s"]["value"], found["sync_s"]["source"]) == (0.5, "flag --sync-s")
    assert found["reconcile_s"]["source"] == "default"
    assert "interval_s" in call("config").output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("config", "--interval-s", "0.04"), "interval_s = '0.04' (from flag --interval-s) is refused: use 0.05 to"),
        (("config", "--log-level", "loud"), "debug, info, warning or error"),
        (("config", "--managed-cpus", "3-1"), "managed_cpus"),
        (("config", "--config", "/nonexistent.toml"), "does not exist"),
        (("db", "upgrade", "--database-url", "mysql://x/y"), "sqlite:///"),
        (("status",), "equipoise token create"),
        (("token", "create", "--role", "host", "--name", "x"), "host"),
        (("token", "create", "--role", "viewer", "--name", "bad name"), "name"),
    ],
)
def test_what_is_refused_is_named_without_a_traceback(arguments: tuple[str, ...], says: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 1
    assert says in result.output
    assert "Traceback" not in result.output


def test_unknown_setting_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_INTERVALL", "1")
    assert "unknown setting 'intervall'" in call("config").output


def test_a_child_has_the_settings_of_its_parent_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    default, own = tmp_path / "default.toml", tmp_path / "own.toml"
    default.write_text("min_samples = 30\nstale_s = 60\n")
    own.write_text("stale_s = 40\n")
    monkeypatch.setattr("manager.settings.DEFAULT_CONFIG_FILE", default)
    settings = load_settings(own, dict(os.environ), {})
    result = CliRunner().invoke(main, ["config", "--json"], env=environment(settings))
    assert result.exit_code == 0, result.output
    shown = {name: row["value"] for name, row in json.loads(result.stdout).items()}
    assert shown == {name: settings.shown(name) for name in shown}
    assert (shown["min_samples"], shown["stale_s"]) == (20, 40.0)


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        ({}, "http://127.0.0.1:8750"),
        ({"listen_host": "::1"}, "http://[::1]:8750"),
        ({"listen_host": "::1", "tls_certificate": "x"}, "https://[::1]:8750"),
        ({"tls_certificate": "x", "manager_url": "https://equipoise.example.org"}, "https://equipoise.example.org"),
    ],
)
def test_where_run_finds_its_manager(flags: dict[str, Value | None], url: str) -> None:
    assert url_of_manager(load_settings(None, {}, flags)) == url


def test_a_manager_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_TOKEN", "x")
    result = call("decisions", "--manager-url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "the manager at http://127.0.0.1:9 does not answer" in result.output


def test_tokens_are_made_listed_and_revoked() -> None:
    secret = call("token", "create", "--role", "operator", "--name", "alice").stdout.strip()
    assert len(secret) > 30
    assert call("token", "create", "--role", "viewer", "--name", "alice").exit_code == 1
    listed = call("token", "list").output
    assert "alice" in listed
    assert secret not in listed
    assert call("token", "revoke", "alice").exit_code == 0
    assert call("token", "revoke", "alice").exit_code == 1


def test_database_up_and_down() -> None:
    assert "no tables" in call("db", "current").output
    upgraded = call("db", "upgrade").output
    assert re.fullmatch(r"at revision \d{4}\n", upgraded)
    assert upgraded.endswith(call("db", "current").output)
    assert call("db", "downgrade", "base").exit_code == 1, "asks first"
    assert "at revision base" in call("db", "downgrade", "base", "--yes").output


def test_releasing_this_host_needs_no_token_and_no_manager(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    result = call("release", "--root-dir", str(tmp_path), "--host-name", "h1")
    assert result.exit_code == 0
    assert "nothing to restore" in result.output
    assert "no token" in result.output


def test_an_empty_token_file_is_named_as_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may leave a new file empty."""
    monkeypatch.delenv("EQUIPOISE_TOKEN", raising=False)
    file = tmp_path / "token"
    file.write_text("\n")
    file.chmod(0o600)
    result = call("status", "--token-file", str(file))
    assert result.exit_code == 1
    assert f"no token: {file} is empty" in result.output


def test_the_environment_names_a_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "e.toml"
    file.write_text("interval_s = 2\n")
    monkeypatch.setenv("EQUIPOISE_CONFIG", str(file))
    assert json.loads(call("config", "--json").stdout)["interval_s"]["source"] == str(file)


@pytest.mark.parametrize("token", [b"eqp_one\neqp_two", b"\xff\xfe", "eqp_ü".encode(), b"eqp_one two"])
def test_what_is_no_token_is_named_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(token)
    file.chmod(0o600)
    monkeypatch.setenv("EQUIPOISE_MANAGER_URL", "http://127.0.0.1:1")
    results = [call("status", "--token-file", str(file))]
    monkeypatch.setenv("EQUIPOISE_TOKEN", os.fsdecode(token))
    results.append(call("status"))
    for result, source in zip(results, (str(file), "EQUIPOISE_TOKEN"), strict=True):
        assert result.exit_code == 1
        assert f"no token: {source} holds something else than one word of ASCII" in result.output
        assert "eqp_" not in result.output


def redirected_to(where: str, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, with a buffer for what it prints, whatever holds here."""
    line = f"{shlex.quote(sys.executable)} -m manager.cli {command} {where}"
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(["sh", "-c", line], env=buffered, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("redirected", [">/dev/full", ">&-"])
def test_a_token_that_cannot_be_printed_is_not_made(redirected: str) -> None:
    done = redirected_to(redirected, "token create --role viewer --name lost")
    assert done.returncode == 1
    assert done.stderr.startswith("equipoise: standard output")
    assert "lost" not in call("token", "list").output


@pytest.mark.parametrize("command", ["config", "config --json", "sim list"])
@pytest.mark.parametrize("redirected", [">/dev/full", ">&-"])
def test_an_output_that_cannot_be_written_is_an_error_without_a_traceback(command: str, redirected: str) -> None:
    done = redirected_to(redirected, command)
    assert done.returncode == 1
    assert done.stderr.startswith("equipoise: standard output")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("token create --role viewer --name a --days nan", "0.001<=x<=3650"),
        ("services --duration nan", "0.1<=x<=3600"),
        ("watch web:80 --p95-ms nan", "0<x<=100000"),
    ],
)
def test_a_number_that_is_none_is_in_no_range(words: str, allowed: str) -> None:
    result = call(*words.split())
    assert result.exit_code == 2
    assert f"'nan' is not in the range {allowed}" in result.output


@pytest.mark.parametrize(
    "words",
    [
        "status --host kvm1/history",
        "savings --host ../kvm1",
        "fits new --host kvm1/admission",
        "record file --host kvm1/history",
        "observe --vm shop-web/adopt",
        "release --host kvm1/",
        "host replace kvm1?x",
        "host costs .",
        "profile load shop/budget",
        "profile cache shop/budget",
        "profile table shop/budget",
        "profile pair shop a/b --drive-a http://a/ --drive-b http://b/",
    ],
)
def test_what_is_no_name_asks_for_nothing_else(words: str) -> None:
    result = call(*words.split())
    assert result.exit_code == 2, result.output
    assert "is refused: a name has 1 to 63 letters" in " ".join(result.output.split())


def test_a_picture_of_no_known_format_is_refused_before_the_work() -> None:
    result = call("sim", "matrix", "--picture", "matrix.txt")
    assert result.exit_code == 2
    assert "matrix.txt is refused: use a name that ends in .png, .svg, .pdf" in " ".join(result.output.split())


def test_a_revision_that_is_empty_is_refused() -> None:
    assert "'[REVISION]': it is empty" in call("db", "upgrade", "").output


def test_a_port_of_the_database_that_is_no_number_is_refused() -> None:
    result = call("token", "list", "--database-url", "postgresql://equipoise@db:first/equipoise")
    assert result.exit_code == 1
    assert "database_url is refused: its port is no number" in result.output


writes_a_file = pytest.mark.parametrize(
    "arguments",
    [
        ("record", "FILE", "--for", "1h"),
        ("profile", "load", "shop", "--drive", "http://10.0.0.9/", "--state", "FILE"),
        ("profile", "pair", "a", "b", "--drive-a", "http://a/", "--drive-b", "http://b/", "--picture", "FILE"),
        ("sim", "matrix", "--resume", "FILE"),
        ("sim", "calibrate", "recording", "--out", "FILE"),
    ],
)


@writes_a_file
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    nowhere = tmp_path / "no" / "file"
    result = CliRunner().invoke(main, [str(nowhere) if word == "FILE" else word for word in arguments])
    assert result.exit_code == 2, result.output
    assert "cannot be written: there is no folder" in " ".join(result.output.split())


@writes_a_file
def test_a_device_or_a_pipe_is_never_replaced_by_a_file(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    link = tmp_path / "link.png"
    link.symlink_to("pipe.png")
    for file in (tmp_path / "pipe.png", link):
        result = CliRunner().invoke(main, [str(file) if word == "FILE" else word for word in arguments])
        assert result.exit_code == 2, result.output
        assert "it is no regular file" in " ".join(result.output.split())
    assert (tmp_path / "pipe.png").is_fifo()
    assert link.is_symlink()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link.png", "pipe.png"]
