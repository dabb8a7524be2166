"""The command line: what it prints, writes and refuses, and how it ends."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deploy.lab.loadgen.cli import main

ROOT = Path(__file__).parents[2]


class Ok(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    requests = threading.Semaphore(0)

    def do_GET(self) -> None:
        self.requests.release()
        self.send_response(200 if self.path == "/ok" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's signature
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Ok) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


QUICK = ("--connections", "4", "--warmup", "0", "--interval", "0.1")


def test_table(url: str) -> None:
    result = invoke(f"{url}/ok", "--rate", "100", "--duration", "0.2", *QUICK)
    assert result.exit_code == 0
    assert f"{url}/ok, 4 connections" in result.stdout
    for word in ("p95 ms", "response time", "own lateness", "offered", "0 errors"):
        assert word in result.stdout


def test_json_on_stdout_stands_alone(url: str) -> None:
    result = invoke(f"{url}/ok", "--schedule", "100x0.1,200x0.1", "--json", "-", *QUICK)
    document = json.loads(result.stdout)
    assert document["answered"] == document["sent"] > 0
    assert document["schedule"][1] == {"rate_rps": 200, "duration_s": 0.1}
    assert len(document["intervals"]) >= 2
    assert "response time" in result.stderr


def test_json_file_and_exit_status_without_answers(url: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result = invoke(f"{url}/missing", "--rate", "100", "--duration", "0.1", "--json", str(file), *QUICK)
    assert result.exit_code == 1
    document = json.loads(file.read_text())
    assert document["answered"] == 0
    assert document["errors"] == {"http_404": document["sent"]}
    assert document["p95_us"] is None
    assert "http_404" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://h/",), "give either --rate RPS or --schedule"),
        (("http://h/", "--rate", "1", "--schedule", "1x1"), "give either --rate RPS or --schedule"),
        (("http://h/", "--schedule", "1x1", "--duration", "5"), "--duration goes with --rate"),
        (("http://h/", "--schedule", "1x1,2"), "--schedule 1x1,2 is refused: use RATExSECONDS"),
        (("http://h/", "--rate", "0"), "--schedule 0x20 is refused: use at least one phase"),
        (("http://h/", "--rate", "200000"), "'--rate': 200000.0 is not in the range 0<=x<=100000"),
        (("http://h/", "--rate", "nan"), "--rate nan is refused: use 0 to 100,000"),
        (("http://h/", "--rate", "1", "--connections", "0"), "'--connections': 0 is not in the range 1<=x<=10000"),
        (("http://h/", "--rate", "1", "--timeout", "1000"), "'--timeout': 1000.0 is not in the range 0.01<=x<=100"),
        (("http://h/", "--rate", "1", "--keys", "5"), "--keys is for memcached:// targets only"),
        (("memcached://h", "--rate", "1", "--header", "A: b"), "--header is for http:// targets only"),
        (("http://h/", "--rate", "1", "--header", "A b"), "--header A b: "),
        (("https://h/", "--rate", "1"), "TARGET https://h/ is refused: use http://HOST"),
        (("http://h/a b", "--rate", "1"), "TARGET /a b is refused"),
        (("http://h/", "--rate", "1", "--json", "/no/such/folder/file"), "No such file or directory"),
    ],
)
def test_bad_input_names_option_value_and_range(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_unreachable_server(url: str) -> None:
    result = invoke("http://127.0.0.1:1/", "--rate", "1", "--connect-timeout", "0.1")
    assert result.exit_code == 1
    assert "cannot connect to 127.0.0.1:1 within 0.1 s" in result.stderr


def test_help_is_a_manual() -> None:
    text = invoke("--help").stdout
    for word in ("TARGET is http://", "EXAMPLES", "EXIT STATUS", "--schedule", "client_limited", "[default: 64"):
        assert word in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_run_and_prints_what_there_is(url: str, number: signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    while Ok.requests.acquire(blocking=False):  # of earlier tests
        pass
    command = [sys.executable, "-m", "deploy.lab.loadgen", f"{url}/ok", "--rate", "200", "--duration", "60"]
    with subprocess.Popen(
        [*command, *QUICK, "--json", str(file)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        for _ in range(10):  # more than there are connections, so that some were answered
            assert Ok.requests.acquire(timeout=20)
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "response time" in output
    assert json.loads(file.read_text())["answered"] > 0
