"""The sample of a proxy: a real NGINX with TLS before two real managers on one PostgreSQL, and one of them dying."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from manager.store.database import open_database
from manager.store.tokens import Role, create_token
from tests.deploy.units import TOP
from tests.ports import reserved_ports

SAMPLE = TOP / "deploy/nginx/equipoise.conf"
NAME = "equipoise.example.org"

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")


def configured(folder: Path, http: int, https: int, managers: list[int]) -> Path:
    """The sample, with other ports and files; below what nginx needs to run as an ordinary process."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    text = SAMPLE.read_text()
    for was, becomes in (
        ("/etc/ssl/equipoise/fullchain.pem", str(certificate)),
        ("/etc/ssl/equipoise/key.pem", str(key)),
        ("listen 80;", f"listen 127.0.0.1:{http};"),
        ("    listen [::]:80;\n", ""),
        ("listen 443 ssl", f"listen 127.0.0.1:{https} ssl"),
        ("    listen [::]:443 ssl http2;\n", ""),
        ("server 127.0.0.1:8750 ", f"server 127.0.0.1:{managers[0]} "),
        ("# server 192.0.2.12:8750 ", f"server 127.0.0.1:{managers[1]} "),
    ):
        assert was in text
        text = text.replace(was, becomes)
    main = folder / "nginx.conf"
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.geteuid() == 0 else ""
    main.write_text(
        f"{user}daemon off;\nworker_processes 1;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log {folder}/access.log;\n{places}{text}}}\n"
    )
    return main


@contextmanager
def process(command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EQUIPOISE_")}
    started = subprocess.Popen(command, env=kept | environment)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(30)


def until_it_listens(port: int) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"nothing listens on port {port}")


@dataclass
class Site:
    """A proxy before two managers."""

    http: int
    https: int
    managers: list[subprocess.Popen[bytes]]
    certificate: Path
    tokens: dict[Role, str]

    def client(self, role: Role = Role.ADMIN, address: str = "127.0.0.1") -> httpx.Client:
        """Somebody who comes from an address and knows the certificate."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        context.check_hostname = False  # the name leads nowhere; the certificate is checked
        return httpx.Client(
            base_url=f"https://127.0.0.1:{self.https}",
            headers={"Authorization": f"Bearer {self.tokens[role]}", "Host": NAME},
            transport=httpx.HTTPTransport(verify=context, local_address=address),
            timeout=30,
        )


@pytest.fixture
def site(new_url: Callable[[str], str], tmp_path: Path) -> Iterator[Site]:
    url = new_url("postgresql")
    database = open_database(url)
    database.upgrade()
    with database.registering() as session:
        tokens = {
            role: create_token(session, f"the-{role}", role, None, datetime.now(UTC))[1] for role in (Role.ADMIN,)
        }
    database.close()
    command = [sys.executable, "-m", "manager.cli", "manager"]
    with ExitStack() as stack:
        http, https, *ports = stack.enter_context(reserved_ports(4))
        managers = [
            stack.enter_context(
                process(
                    command,
                    EQUIPOISE_STATE_DIR=str(tmp_path / f"state-{port}"),
                    EQUIPOISE_DATABASE_URL=url,
                    EQUIPOISE_LISTEN_PORT=str(port),
                    EQUIPOISE_TRUSTED_PROXY="127.0.0.1",
                    EQUIPOISE_WORKERS="1",
                )
            )
            for port in ports
        ]
        for port in ports:
            until_it_listens(port)
        configuration = configured(tmp_path, http, https, ports)
        stack.enter_context(process(["nginx", "-c", str(configuration), "-p", str(tmp_path)]))
        until_it_listens(https)
        yield Site(http, https, managers, tmp_path / "certificate.pem", tokens)


def test_nginx_takes_the_sample(tmp_path: Path) -> None:
    with reserved_ports(4) as (http, https, *managers):
        configuration = configured(tmp_path, http, https, managers)
        command = ["nginx", "-t", "-c", configuration, "-p", tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr


def test_requests_events_and_a_manager_that_dies(site: Site) -> None:
    moved = httpx.get(f"http://127.0.0.1:{site.http}/hosts?x=1", headers={"Host": NAME})
    assert (moved.status_code, moved.headers["Location"]) == (301, f"https://{NAME}/hosts?x=1")

    with site.client(address="127.0.0.7") as client:
        health = client.get("/api/v1/health")
        assert health.status_code == 200
        assert "," not in health.headers["Strict-Transport-Security"]  # the manager says it, and it alone
        assert client.get("/metrics").status_code == 404

        # Whoever is told of changes is told by one manager of what was changed by another.
        with client.stream("GET", "/live", params={"topic": "fleet"}) as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if line.startswith("event:")) == "event: hello"
            for number in range(2):
                made = client.put(f"/api/v1/vms/web-{number}", json={"class": "batch"})
                assert made.status_code == 201, made.text
            heard = next(line for line in lines if line.startswith("event:") and "alive" not in line)
            assert heard == "event: changed"

        # The audit knows the browser's address, not the proxy's.
        entries = client.get("/api/v1/audit").json()["items"]
        assert {entry["address"] for entry in entries} == {"127.0.0.7"}, entries

        # Nobody notices that a manager died: not one request of twenty is lost.
        site.managers[0].kill()
        site.managers[0].wait()
        assert {client.get("/api/v1/vms/web-1").status_code for _ in range(20)} == {200}


def test_cookies_are_for_https_alone(site: Site) -> None:
    with site.client() as client:
        del client.headers["Authorization"]
        page = client.get("/sign-in")
        assert page.status_code == 200, page.text
        token = re.findall(r'name="csrf" value="([^"]+)"', page.text)
        sent = {"name": "the-admin", "password": site.tokens[Role.ADMIN], **({"csrf": token[0]} if token else {})}
        answer = client.post("/sign-in", data=sent)
        cookies = answer.headers.get_list("set-cookie")
        assert any(one.startswith("__Host-") and "Secure" in one for one in cookies), (answer.status_code, cookies)
