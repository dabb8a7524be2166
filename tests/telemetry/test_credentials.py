"""Credentials of sources: in files of the agent's host, for their own servers alone, and quoted nowhere."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from manager.model.registration import Application, Tier
from manager.model.source import HttpProbe, PrometheusQuery, SourceState
from manager.model.url import covers, secret_of
from manager.telemetry.credentials import CredentialError, Credentials
from manager.telemetry.source_thread import Sources
from tests.telemetry.conftest import LOOPBACK, until

SECRET = "hunter2-Secret"
URL = "https://prom.example.org/base"
GOOD = f'url = "{URL}"\nuser = "me"\npassword = "{SECRET}"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "credentials"
    made.mkdir(mode=0o700)
    return made


def put(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "main"
    path.touch()
    path.chmod(mode)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        (GOOD, {"Authorization": "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()}),
        (f'url = ["https://other", "{URL}"]\ntoken = "t"', {"Authorization": "Bearer t"}),
        (f'url = "{URL}"\n[headers]\nX-Scope-OrgID = "1"', {"X-Scope-OrgID": "1"}),
    ],
)
def test_what_requests_carry(folder: Path, text: str, carried: dict[str, str]) -> None:
    put(folder, text, 0o400)
    for url in (URL, f"{URL}/", f"{URL}/api", URL.replace("prom.", "PROM.").replace("org", "org:443")):
        assert Credentials(folder).headers("main", url) == carried
    assert Credentials(folder).headers(None, "http://anywhere") == {}


@pytest.mark.parametrize(
    "url",
    [
        "http://prom.example.org/base",
        "https://prom.example.org:444/base",
        "https://prom.example.org.evil.org/base",
        "https://evil.org/base",
        "https://prom.example.org/",
        "https://prom.example.org/based",
        "https://prom.example.org/base/../admin",
        "https://prom.example.org/base/%2e%2e/admin",
        "https://prom.example.org/base/%252e%252e/admin",
        "https://prom.example.org/base/..\\admin",
        "https://prom.example.org/base/.%5cadmin",
    ],
)
def test_it_goes_nowhere_else(folder: Path, url: str) -> None:
    put(folder, GOOD)
    with pytest.raises(CredentialError, match="is not for this URL"):
        Credentials(folder).headers("main", url)


BAD = {
    f'url = "{URL}"\npassword = "{SECRET}"': "has neither",
    f'url = "{URL}"\nuser = "a:b"\npassword = "{SECRET}"': "has a user with a colon",
    f'user = "me"\npassword = "{SECRET}"': "names no `url`",
    f'url = "{SECRET}"\ntoken = "{SECRET}"': "has a `url` that is none",
    f'url = "{URL}"\ntoken = "{SECRET}"\n{SECRET} = 1': "has 1 unknown keys",
    f'url = "{URL}"\ntoken = "{SECRET}': "is not valid TOML",
    f'url = "{URL}"\ntoken = "{SECRET}\\r\\nX: 1"': "not printable ASCII",
    f'url = "{URL}"\n[headers]\n"{SECRET}:" = "1"': "of a name that is not allowed",
    f'url = "{URL}"\n[headers]\nHost = "{SECRET}"': "of a name that is not allowed",
    f'url = "{URL}"\ntoken = 5': "a value that is no text",
    f"# {SECRET}\n" + "#" * 70_000: "has more than 65536 bytes",
}


@pytest.mark.parametrize(("text", "says"), BAD.items())
def test_what_is_not_understood_is_refused_and_not_quoted(folder: Path, text: str, says: str) -> None:
    put(folder, text)
    with pytest.raises(CredentialError, match=says) as refused:
        Credentials(folder).headers("main", URL)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert str(folder / "main") in str(refused.value)


def test_files_that_others_could_read_or_exchange_are_refused(folder: Path, tmp_path: Path) -> None:
    credentials = Credentials(folder)

    def refusal(name: str = "main") -> str:
        with pytest.raises(CredentialError) as refused:
            credentials.headers(name, URL)
        return str(refused.value)

    assert "there is no credential" in refusal()
    path = put(folder, GOOD, 0o640)
    assert f"others could read or exchange {path}: `chmod go-rwx` it" in refusal()
    path.chmod(0o600)
    folder.chmod(0o777)
    assert f"exchange {folder}: `chmod go-w` it" in refusal()
    folder.chmod(0o755)
    assert credentials.headers("main", URL)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "is no regular file" in refusal()
    path.unlink()
    os.mkfifo(path)
    assert "is no regular file" in refusal()
    for name in ("../elsewhere", "..", "/etc/passwd", "a/b", "", "a\0"):
        assert "name is refused" in refusal(name)
    if os.geteuid() == 0:
        path.unlink()
        os.chown(put(folder, GOOD), 65534, 65534)
        assert "belongs to user 65534" in refusal()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://me:p@ss@db.example.org/x", "a user or password"),
        ("http://me@db.example.org/x", "a user or password"),
        ("http://h/x?a=1&api_key=s&b=2", "'api_key'"),
        ("http://h/x?access%5Ftoken=s", "'access_token'"),
        ("http://h/?sig=s;auth=t", "'sig'"),
    ],
)
def test_secrets_in_urls(url: str, named: str) -> None:
    assert named in secret_of(url)
    assert "credential" in secret_of(url)


@pytest.mark.parametrize("url", ["http://h/x?author=me&monkey=1&keyboard=2", "http://h:80/a/b?x", "http://h"])
def test_others_stay_as_they_are(url: str) -> None:
    assert secret_of(url) == ""


@given(st.text())
@example("http://[::1")
@example("http://a@[::1")
def test_any_text_may_stand_for_a_url(text: str) -> None:
    try:
        covers(URL, text)
    except ValueError:
        return


class _Server(HTTPServer):
    seen: list[str | None]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.seen.append(self.headers["Authorization"])
        body = b'{"status": "success", "data": {"resultType": "vector", "result": []}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    made = _Server(("127.0.0.1", 0), _Handler)
    made.seen = []
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_both_kinds_carry_it_and_only_where_it_belongs(server: _Server, folder: Path) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    put(folder, f'url = "{url}/mine"\ntoken = "{SECRET}"')
    sources = Sources("127.0.0.1", 0, reach=LOOPBACK, credentials=Credentials(folder))
    sources.start()
    try:
        wanted = (
            HttpProbe("probe", f"{url}/mine/health", 100, credential="main"),
            PrometheusQuery("prom", f"{url}/mine", "up", credential="main"),
            HttpProbe("elsewhere", f"{url}/others", 100, credential="main"),
            HttpProbe("nothing", f"{url}/mine", 100, credential="missing"),
        )
        sources.configure([Application("shop", (Tier("web", ("v",)),), sources=wanted)], 5.0, {})

        def ended() -> bool:
            states = {one.source: one.state for one in sources.statuses()}
            return len(server.seen) > 3 and [states["elsewhere"], states["nothing"]] == [SourceState.FAILING] * 2

        until(ended, "those that may run, and the others say why not")
        details = {one.source: one.detail for one in sources.statuses()}
    finally:
        sources.close()
    assert {*server.seen} == {f"Bearer {SECRET}"}
    assert "is not for this URL" in details["elsewhere"]
    assert f"there is no credential {folder / 'missing'}" in details["nothing"]
    assert SECRET not in str(details)
