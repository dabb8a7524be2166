"""`equipoise support-bundle`: everything that helps is in it, and nothing that is secret, wherever it was planted."""

from __future__ import annotations

import errno
import json
import re
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from manager.cli import main, support_command
from manager.masking import HIDDEN, masked, masked_json

SECRETS = {
    "token of the environment": "environment-token-4711",
    "admin's token": "eqp_adminadminadminadmin",
    "agent's token": "agent-token-0815",
    "admin's password": "correct-horse-battery",
    "token file": "token-of-the-token-file",
    "database": "database-p4ss",
    "log, a header": "bearer-of-the-log",
    "log, a token": "eqp_SomebodyElse-s_Token",
    "log, a URL": "url-p4ss",
    "log, a setting": "setting-p4ss",
    "source of the manager": "source-p4ss",
}
LOG = f"""
a request with Authorization: Bearer {SECRETS["log, a header"]}
refused {SECRETS["log, a token"]} from 192.0.2.1
cannot reach postgresql://equipoise:{SECRETS["log, a URL"]}@db.example.org/equipoise
{{"password": "{SECRETS["log, a setting"]}", "kept": "kept-in-the-log"}}
it said {SECRETS["admin's password"]} and {SECRETS["agent's token"]}
"""


class Client:
    """A manager with a source whose URL has a password."""

    def items(self, path: str, limit: int) -> list[dict[str, str]]:
        return [{"path": path, "url": f"http://scraper:{SECRETS['source of the manager']}@prometheus.example.org/"}]

    def close(self) -> None:
        pass


def bundle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, bytes]]:
    """The file, and what is in it by name."""
    state = folder / "state"
    state.mkdir()
    (state / "admin.token").write_text(SECRETS["admin's token"] + "\n")
    (state / "agent.token").write_text(SECRETS["agent's token"] + "\n")
    (state / "admin-password").write_text(SECRETS["admin's password"] + "\n")
    (folder / "token").write_text(SECRETS["token file"] + "\n")
    with closing(sqlite3.connect(state / "journal.db")) as journal:
        journal.execute("CREATE TABLE originals (value TEXT)")
        journal.execute("INSERT INTO originals VALUES ('1024')")
        journal.commit()
    monkeypatch.setattr(support_command, "connect", lambda _settings: Client())
    said = {"journalctl": LOG, "doctor": json.dumps({"findings": [SECRETS["token file"]]})}
    monkeypatch.setattr(
        support_command,
        "_output",
        lambda command, _variables=None: said["doctor" if "doctor" in command else "journalctl"],
    )
    settings = {
        "EQUIPOISE_STATE_DIR": str(state),
        "EQUIPOISE_TOKEN": SECRETS["token of the environment"],
        "EQUIPOISE_TOKEN_FILE": str(folder / "token"),
        "EQUIPOISE_DATABASE_URL": f"postgresql://me:{SECRETS['database']}@db.example.org/equipoise",
    }
    output = folder / "bundle.tar.gz"
    result = CliRunner().invoke(main, ["support-bundle", "--output", str(output)], env=settings)
    assert result.exit_code == 0, result.output
    assert result.output.strip() == str(output)
    with tarfile.open(output) as found:
        names = {name.partition("/")[2]: name for name in found.getnames()}
        return output, {short: found.extractfile(name).read() for short, name in names.items()}  # type: ignore[union-attr]


def test_no_secret_is_in_it_but_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, parts = bundle(tmp_path, monkeypatch)
    assert file.stat().st_mode & 0o777 == 0o600
    everything = b"\n".join(parts.values()).decode(errors="replace")
    assert [name for name, secret in SECRETS.items() if secret in everything] == []
    assert HIDDEN in parts["settings.json"].decode()
    log = parts["log/equipoise-agent.txt"].decode()
    assert log.count(HIDDEN) >= 6
    assert "kept-in-the-log" in log
    assert "192.0.2.1" in log
    assert f"postgresql://{HIDDEN}@db.example.org/equipoise" in parts["settings.json"].decode()
    assert json.loads(parts["manager/hosts.json"])[0]["path"] == "/hosts"
    assert {"versions.json", "doctor.json", "manager/vms.json", "manager/events.json", "journal.db"} <= parts.keys()
    assert json.loads(parts["versions.json"])["libraries"]["click"]
    copy = tmp_path / "copy.db"
    copy.write_bytes(parts["journal.db"])
    with closing(sqlite3.connect(copy)) as journal:
        assert journal.execute("SELECT value FROM originals").fetchall() == [("1024",)]


def test_the_secrets_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hiding, each of those that are planted in a part is there: so the other test can fail."""
    monkeypatch.setattr(support_command, "masker", lambda _known: lambda text: text)
    monkeypatch.setattr(support_command, "masked_json", lambda value, _hide: value)
    _, parts = bundle(tmp_path, monkeypatch)
    everything = b"\n".join(parts.values()).decode(errors="replace")
    unplanted = {name for name, secret in SECRETS.items() if secret not in everything}
    assert unplanted == {"token of the environment", "admin's token", "database"}, "never in it, or hidden twice"


def test_what_cannot_be_had_is_said(tmp_path: Path) -> None:
    output = tmp_path / "bundle.tar.gz"
    settings = {"EQUIPOISE_STATE_DIR": str(tmp_path), "PATH": "/nowhere", "EQUIPOISE_ROOT_DIR": str(tmp_path)}
    result = CliRunner().invoke(main, ["support-bundle", "--output", str(output)], env=settings)
    assert result.exit_code == 0, result.output
    with tarfile.open(output) as found:
        texts = {
            name.partition("/")[2]: found.extractfile(name).read().decode()  # type: ignore[union-attr]
            for name in found.getnames()
        }
    assert "not available: no token" in texts["manager/hosts.json"]
    assert "not available" in texts["log/equipoise-agent.txt"]
    assert "not available" in texts["journal.db.txt"]
    assert not (tmp_path / "journal.db").exists()


def test_nothing_of_the_folder_that_it_is_run_in_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may be in a folder that others write to, as /tmp is."""
    folder = tmp_path / "folder"
    (folder / "manager").mkdir(parents=True)
    (folder / "manager/__init__.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.chdir(folder)
    settings = {"EQUIPOISE_STATE_DIR": str(tmp_path / "state"), "EQUIPOISE_ROOT_DIR": str(tmp_path)}
    result = CliRunner().invoke(main, ["support-bundle", "--output", str(tmp_path / "bundle.tar.gz")], env=settings)
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "executed").exists()


def test_no_command_takes_modules_of_the_folder_that_it_is_run_in() -> None:
    sources = [path.read_text() for path in (Path(__file__).parents[2] / "manager").rglob("*.py")]
    begun = [match for text in sources for match in re.findall(r'sys\.executable,\s+("-\w")', text)]
    assert set(begun) == {'"-P"', '"-I"'}, "-I is -P and more"


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    command = ["support-bundle", "--output", str(tmp_path / "nowhere/bundle.tar.gz")]
    result = CliRunner().invoke(main, command, env={"EQUIPOISE_STATE_DIR": str(tmp_path)})
    assert result.exit_code == 1
    assert "cannot be written: No such file" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "cannot be written: No space left"),
        (KeyboardInterrupt(), "Aborted!"),
    ],
)
def test_a_part_of_a_bundle_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(support_command, "_parts", full)
    file = tmp_path / "bundle.tar.gz"
    result = CliRunner().invoke(main, ["support-bundle", "--output", str(file)])
    assert result.exit_code == 1
    assert said in result.output
    assert not file.exists()


def test_what_is_there_is_neither_written_to_nor_followed(tmp_path: Path) -> None:
    """Somebody who guesses the name must not choose where root writes, nor have the bundle's file open already."""
    target = tmp_path / "target"
    target.touch()
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for output in (target, tmp_path / "link", tmp_path / "dangling"):
        result = CliRunner().invoke(
            main, ["support-bundle", "--output", str(output)], env={"EQUIPOISE_STATE_DIR": str(tmp_path)}
        )
        assert (result.exit_code, result.output.count("\n")) == (1, 1)
        assert f"{output} exists: choose another name" in result.output
    assert target.read_bytes() == b""
    assert not (tmp_path / "nowhere").exists()


SECRET = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=12, max_size=40).map(
    lambda text: f"mArK{text}"
)
ODD = st.text("@:/!#$%^*()-_=+.~?x0", min_size=1, max_size=8)
"""What passwords hold besides."""

PLACES = (
    "eqp_{0}",
    "a join token eqj_{0}, used",
    "eqt_{0}",
    "Authorization: Bearer {0}",
    "{{'authorization': 'bearer {0}'}}",
    "Authorization: Basic {0}==",
    "curl -H 'Authorization: Token {0}'",
    "Cookie: equipoise_session={0}; x=1",
    "GET /x?a=1&token={0}&b=2 200",
    "https://h.example.org/?api_key={0}",
    "https://u:{0}{1}@h.example.org:9090/x",
    "https://u:{1}{0}@h.example.org/x?a=b",
    "postgresql+psycopg://equipoise:p@ss{1}{0}@db.example.org/equipoise",
    "postgresql://db/equipoise?user=a&password={0}",
    "host=db user=a password={0} dbname=x",
    "host=db password='{0} {0}' dbname=x",
    'password = "{0}{1}"',
    'password = "a\\"{0}"',
    "db_passwd: {0}",
    '{{"client_secret": "{0}{1}", "a": 1}}',
    '{{\\"password\\": \\"{0}\\"}}',
    "API-Key: {0}",
    "-----BEGIN PRIVATE KEY-----\n{0}\n{0}\n-----END PRIVATE KEY-----\nafter",
    "-----BEGIN EC PRIVATE KEY-----\\n{0}\\n-----END EC PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----\n{0}",
    "eyJhbGciOiJIUzI1NiJ9.{0}.{0}",
)


@given(st.sampled_from(PLACES), SECRET, ODD, st.text(max_size=20), st.text(max_size=20))
def test_a_secret_is_hidden_wherever_it_stands(place: str, secret: str, odd: str, before: str, after: str) -> None:
    text = f"{before} {place.format(secret, odd)} {after}"
    assert "mArK" not in masked(text)
    assert "mArK" not in json.dumps(masked_json({"message": text, "list": [text]}))
    assert "mArK" not in json.dumps(masked_json({"password": secret, "apiToken": secret, "x": {"bearer": secret}}))


@pytest.mark.parametrize(
    "text",
    [
        "tick 7 took 12 ms: /var/lib/equipoise/journal.db, host kvm7, 192.0.2.1:8750",
        "http://192.0.2.1:8750/api/v1/hosts?limit=10 -> 200",
        "vcpu_pin 0: 0-3 was 0-7 (kept)",
    ],
)
def test_what_helps_stays(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://h/db?password=secret", f"postgresql://h/db?password={HIDDEN}"),
        ("(postgresql://h/db?password=secret&x=1)", f"(postgresql://h/db?password={HIDDEN}&x=1)"),
        ("Authorization: Bearer secret", f"Authorization: {HIDDEN}"),
        ("(token: secret)", f"(token: {HIDDEN})"),
    ],
)
def test_what_is_hidden_is_so_once(text: str, shown: str) -> None:
    assert masked(text) == masked(masked(text)) == shown
