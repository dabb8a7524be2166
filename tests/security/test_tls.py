"""The manager by TLS of its own, and clients that believe it alone. Real sockets, real certificates."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from flask import Flask, Response, request

from manager.api.manager_server import make_server
from manager.errors import ManagerUnavailable, SettingsError
from manager.protocol.client import ManagerClient
from manager.serving.exchange import EXCHANGE, MAX_BODY_BYTES
from manager.serving.server import HttpServer, Lanes
from manager.settings import load_settings
from manager.store.database import Database
from manager.tls import client_context, server_context
from tests.ports import reserved_ports
from tests.security.certificates import Pem, authority, certificate

HERE = "IP:127.0.0.1,DNS:localhost"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def ours(folder: Path) -> Pem:
    return authority(folder, "ours")


@pytest.fixture(scope="module")
def good(folder: Path, ours: Pem) -> Pem:
    return certificate(folder, ours, HERE)


def application() -> Flask:
    """Tells how it is asked, and answers bodies of any size."""
    app = Flask("shown")

    @app.post("/api/v1/digest")
    def digest() -> Response:
        if request.environ[EXCHANGE].undecided:
            request.environ[EXCHANGE].limit_bytes = MAX_BODY_BYTES
            return Response()
        body = request.get_data()
        assert request.is_secure
        return Response(f'"{hashlib.sha256(body).hexdigest()}"', mimetype="application/json")

    @app.get("/api/v1/large")
    def large() -> Response:
        return Response(b"0" * 3_000_000 + b"1", mimetype="application/json")

    @app.get("/api/v1/health")
    def health() -> Response:
        return Response('{"status": "ok"}', mimetype="application/json")

    return app


@pytest.fixture
def serve() -> Iterator[Callable[[Pem], int]]:
    """Serves with a certificate; answers the port."""
    servers: list[HttpServer] = []

    def start(pem: Pem) -> int:
        context = server_context(str(pem.certificate), str(pem.key))
        servers.append(HttpServer(application(), "127.0.0.1", 0, Lanes(4), tls=context))
        servers[-1].start()
        return servers[-1].addresses[0][1]

    yield start
    for server in servers:
        server.close()


def client(port: int, authorities: Path, host: str = "127.0.0.1") -> ManagerClient:
    return ManagerClient(f"https://{host}:{port}", "s3cret", authorities=client_context(str(authorities)))


def test_requests_and_answers_of_any_size_pass(serve: Callable[[Pem], int], ours: Pem, good: Pem) -> None:
    asked = client(serve(good), ours.certificate)
    for size in (0, 1, 16_383, 16_384, 16_385, 5_000_000):
        content = "x" * size
        found = asked.request("POST", "/digest", content=content).json()
        assert found == hashlib.sha256(content.encode()).hexdigest()
    assert len(asked.request("GET", "/large").content) == 3_000_001
    asked.close()


def test_many_at_once_are_served(serve: Callable[[Pem], int], ours: Pem, good: Pem) -> None:
    port = serve(good)
    found: list[int] = []

    def ask() -> None:
        mine = client(port, ours.certificate)
        found.extend(len(mine.request("GET", "/large").content) for _ in range(5))
        mine.close()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [3_000_001] * 40


def test_a_reader_that_stalls_and_one_that_speaks_no_tls_hold_up_nobody(
    serve: Callable[[Pem], int], ours: Pem, good: Pem
) -> None:
    port = serve(good)
    with (
        socket.create_connection(("127.0.0.1", port)) as silent,
        socket.create_connection(("127.0.0.1", port)) as plain,
    ):
        silent.sendall(b"\x16\x03\x01")  # begins a handshake
        plain.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        plain.settimeout(5)
        answer = b""
        try:
            while part := plain.recv(1000):
                answer += part
        except ConnectionError:
            pass
        assert b"ok" not in answer, "nothing is told without TLS"
        for _ in range(3):
            asked = client(port, ours.certificate)
            assert asked.get("/health") == {"status": "ok"}
            asked.close()


def test_old_versions_of_tls_are_refused(serve: Callable[[Pem], int], ours: Pem, good: Pem) -> None:
    port = serve(good)
    context = client_context(str(ours.certificate))
    with pytest.warns(DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", port)) as raw, pytest.raises(ssl.SSLError):
        context.wrap_socket(raw, server_hostname="127.0.0.1")


def test_only_the_manager_with_a_certificate_for_its_name_is_told_anything(
    serve: Callable[[Pem], int], folder: Path, ours: Pem, good: Pem
) -> None:
    theirs = authority(folder, "theirs")
    cases = {
        "unable to get local issuer certificate": (certificate(folder, theirs, HERE), "127.0.0.1"),
        "not valid for '127.0.0.1'|IP address mismatch": (
            certificate(folder, ours, "DNS:kvm7.example.org"),
            "127.0.0.1",
        ),
        "not valid for 'localhost'|Hostname mismatch": (certificate(folder, ours, "IP:127.0.0.1"), "localhost"),
        "self-signed certificate": (theirs, "127.0.0.1"),
    }
    for words, (pem, host) in cases.items():
        asked = client(serve(pem), ours.certificate, host)
        with pytest.raises(ManagerUnavailable, match=f"gets no request, .*({words})") as refused:
            asked.get("/health")
        assert "manager_ca_file names the authorities to believe" in str(refused.value)
        assert "s3cret" not in str(refused.value)
    system = ManagerClient(f"https://127.0.0.1:{serve(good)}", "s3cret")
    with pytest.raises(ManagerUnavailable, match="its certificate is not believed"):
        system.get("/health")


def test_files_that_cannot_be_used_are_named(folder: Path, good: Pem, ours: Pem) -> None:
    empty = folder / "empty.pem"
    empty.write_text("")
    locked = folder / "locked.key"
    text = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n"
    locked.write_text(text)
    for arguments, words in (
        (("/nowhere/x.pem", ""), "tls_certificate = '/nowhere/x.pem' cannot be read: No such file"),
        ((str(good.certificate), "/nowhere/x.key"), "tls_key = '/nowhere/x.key' cannot be read"),
        ((str(good.certificate), ""), "tls_certificate: .* cannot be used"),
        ((str(good.certificate), str(ours.key)), "cannot be used: KEY_VALUES_MISMATCH"),
        ((str(empty), str(good.key)), "cannot be used"),
        ((str(good.certificate), str(locked)), "cannot be used"),
        (("", str(good.key)), "tls_key is of no use without tls_certificate"),
    ):
        with pytest.raises(SettingsError, match=words):
            server_context(*arguments)
    for file, words in (
        ("/nowhere/ca.pem", "manager_ca_file = '/nowhere/ca.pem' cannot be read"),
        (str(empty), "no certificate"),
    ):
        with pytest.raises(SettingsError, match=words):
            client_context(file)
    assert server_context("", "") is None


def test_the_manager_and_its_command_line_speak_tls_by_their_settings(
    migrated: Callable[[str], Database], ours: Pem, good: Pem, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = {"listen_port": port, "tls_certificate": str(good.certificate), "tls_key": str(good.key)}
    server = make_server(load_settings(None, {}, {**flags, "state_dir": str(tmp_path)}), migrated("sqlite"), {})
    server.start()
    try:
        command = [sys.executable, "-m", "manager.cli", "status", "--manager-url", f"https://127.0.0.1:{port}"]
        for more, words in (
            (["--manager-ca-file", str(ours.certificate)], "401 the token is unknown"),
            ([], "its certificate is not believed"),
        ):
            environ = {**os.environ, "EQUIPOISE_TOKEN": "wrong"}
            ended = subprocess.run([*command, *more], env=environ, capture_output=True, text=True, check=False)
            assert (ended.returncode, words in ended.stderr) == (1, True), ended.stderr
    finally:
        server.close()


@contextmanager
def manager_process(folder: Path, *more: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A manager that serves in one process, and its port."""
    log = folder.parent / "log"
    with ExitStack() as stack:
        [port] = stack.enter_context(reserved_ports(1))
        served = ["manager", "--state-dir", str(folder), "--listen-port", str(port), *more]
        errors = stack.enter_context(log.open("wb"))
        process = stack.enter_context(subprocess.Popen([sys.executable, "-m", "manager.cli", *served], stderr=errors))
        stack.callback(process.kill)
        until(lambda: b"listening on" in log.read_bytes())
        yield process, port
        process.terminate()
        assert process.wait(60) == 0


def until(so: Callable[[], bool]) -> None:
    for _ in range(600):
        if so():
            return
        time.sleep(0.1)
    raise AssertionError((so, "does not come"))


def certificate_at(port: int) -> str:
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port))).hex()


def of_file(pem: Path) -> str:
    return ssl.PEM_cert_to_DER_cert(pem.read_text()).hex()


def test_a_manager_of_one_process_reads_its_certificate_again_at_sighup(
    ours: Pem, good: Pem, folder: Path, tmp_path: Path
) -> None:
    used = Pem(tmp_path / "manager.pem", tmp_path / "manager.key")
    shutil.copy(good.certificate, used.certificate)
    shutil.copy(good.key, used.key)
    newer = certificate(folder, ours, HERE, days=3)
    files = ["--tls-certificate", str(used.certificate), "--tls-key", str(used.key)]
    with manager_process(tmp_path / "state", *files) as (process, port):
        asked = client(port, ours.certificate)
        assert asked.get("/health")["status"] == "ok"
        shutil.copy(newer.certificate, used.certificate)
        process.send_signal(signal.SIGHUP)
        until(lambda: b"the certificate stays as it is" in (tmp_path / "log").read_bytes())
        assert certificate_at(port) == of_file(good.certificate), "a key of another one is refused"
        shutil.copy(newer.key, used.key)
        process.send_signal(signal.SIGHUP)
        until(lambda: certificate_at(port) == of_file(newer.certificate))
        assert asked.get("/health")["status"] == "ok", "the connection that was open stays"
        asked.close()


def test_sighup_does_not_end_a_manager_without_a_certificate(tmp_path: Path) -> None:
    with manager_process(tmp_path / "state") as (process, port):
        process.send_signal(signal.SIGHUP)
        asked = ManagerClient(f"http://127.0.0.1:{port}", "")
        for _ in range(3):
            assert asked.get("/health")["status"] == "ok"
        asked.close()


def test_the_end_is_told(serve: Callable[[Pem], int], ours: Pem, good: Pem) -> None:
    """With TLS's own close, without which a reader cannot know that nothing was cut off."""
    port = serve(good)
    context = client_context(str(ours.certificate))
    with (
        socket.create_connection(("127.0.0.1", port)) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as wrapped,
    ):
        wrapped.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        wrapped.settimeout(10)
        answer = b""
        while part := wrapped.recv(1000):
            answer += part
        assert answer.endswith(b'{"status": "ok"}')
