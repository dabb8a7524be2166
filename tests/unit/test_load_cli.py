"""The command line: what it prints, writes and refuses, and how it ends."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner, Result

from manager.cli import main
from manager.cli.load_options import GroupedCommand

from .test_load_run import once

ROOT = Path(__file__).parents[2]


class Ok(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    requests: ClassVar[dict[str, threading.Semaphore]] = {}
    """Released for each request of a path that a test counts."""

    def do_GET(self) -> None:
        if self.path in self.requests:
            self.requests[self.path].release()
        self.send_response(404 if self.path == "/missing" else 200)
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
    return CliRunner().invoke(main, ["load", *arguments])


LONG_S = 120.0
"""What a command may take to start or to end beside others that have the CPUs first."""
QUICK = ("--connections", "4", "--warmup", "0", "--interval", "0.1", "--timeout", "100", "--connect-timeout", "100")


def test_table(url: str) -> None:
    def check() -> bool:
        result = invoke(f"{url}/ok", "--rate", "100", "--duration", "0.2", *QUICK)
        for word in (
            f"{url}/ok: open loop, 4 connections",
            "p95 ms",
            "response time",
            "own lateness",
            "offered",
            "0 errors",
        ):
            assert word in result.stdout
        return (result.exit_code, result.stderr) == (0, "")

    once(check)


def test_closed_loop(url: str) -> None:
    def check() -> bool:
        result = invoke(f"{url}/ok", "--closed", "--pipeline", "2", "--duration", "0.2", "--json", *QUICK)
        document = json.loads(result.stdout)
        assert document["answered"] == document["sent"] >= 8
        assert (document["loop"], document["pipeline"], document["offered_rps"]) == ("closed", 2, None)
        assert document["schedule"] == [{"rate_rps": None, "duration_s": 0.2}]
        assert document["lateness"]["max_us"] == 0
        return document["sent"] > 8

    once(check)


def test_json_stands_alone(url: str) -> None:
    result = invoke(f"{url}/ok", "--schedule", "100x0.1,200x0.1", "--json", *QUICK)
    document = json.loads(result.stdout)
    assert document["answered"] == document["sent"] > 0
    assert document["schedule"][1] == {"rate_rps": 200, "duration_s": 0.1}
    assert len(document["intervals"]) >= 2


def test_exit_status_without_answers(url: str) -> None:
    result = invoke(f"{url}/missing", "--rate", "100", "--duration", "0.1", "--json", *QUICK)
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["answered"] == 0
    assert document["errors"] == {"http_404": document["sent"]}
    assert document["p95_us"] is None
    assert f"answered none of {document['sent']} requests (http_404" in result.stderr


def test_a_rate_that_cannot_be_generated(url: str) -> None:
    result = invoke(f"{url}/ok", "--rate", "100000", "--duration", "0.3", "--warmup", "0", "--timeout", "3", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["requested_rps"] < 0.95 * document["offered_rps"]
    assert document["shortfall"] in result.stderr
    assert f"only {document['requested_rps']:,.0f} req/s could be sent" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://h/",), "give one of --rate RPS, --schedule"),
        (("http://h/", "--rate", "1", "--schedule", "1x1"), "give one of --rate RPS, --schedule"),
        (("http://h/", "--rate", "1", "--closed"), "give one of --rate RPS, --schedule"),
        (("http://h/", "--closed", "--duration", "0"), "'--duration': 0.0 is not in the range 0<x<=604800"),
        (("http://h/", "--rate", "1", "--duration", "0"), "'--duration': 0.0 is not in the range 0<x<=604800"),
        (("http://h/", "--closed", "--pipeline", "0"), "'--pipeline': 0 is not in the range 1<=x<=100"),
        (("http://h/", "--schedule", "1x1", "--duration", "5"), "--duration goes with --rate"),
        (("http://h/", "--schedule", "1x1,2"), "--schedule 1x1,2 is refused: use RATExSECONDS"),
        (("http://h/", "--schedule", "0x20"), "--schedule 0x20 is refused: use at least one phase"),
        (("http://h/", "--rate", "0"), "'--rate': 0.0 is not in the range 0<x<=100000"),
        (("http://h/", "--rate", "200000"), "'--rate': 200000.0 is not in the range 0<x<=100000"),
        (("http://h/", "--rate", "nan"), "--rate nan is refused: use 0 to 100,000"),
        (("http://h/", "--rate", "1", "--connections", "0"), "'--connections': 0 is not in the range 1<=x<=10000"),
        (("http://h/", "--rate", "1", "--timeout", "1000"), "'--timeout': 1000.0 is not in the range 0.01<=x<=100"),
        (("http://h/", "--rate", "1", "--set-share", "1"), "--set-share is for memcached:// targets only"),
        (("http://h/", "--rate", "1", "--keys", "5"), "--keys 5 is refused: use it with {key} in the path"),
        (("http://h/", "--rate", "1", "--zipf", "7"), "'--zipf': 7.0 is not in the range 0<=x<=5"),
        (("memcached://h", "--rate", "1", "--value-bytes", "9-1"), "--value-bytes 9-1 is refused: use 1 to 1,000,000"),
        (("memcached://h", "--rate", "1", "--value-bytes", "0"), "--value-bytes 0 is refused: use 1 to 1,000,000"),
        (("memcached://h", "--rate", "1", "--header", "A: b"), "--header is for http:// targets only"),
        (("http://h/", "--rate", "1", "--header", "A b"), "--header A b: "),
        (("https://h/", "--rate", "1"), "TARGET https://h/ is refused: use http://HOST"),
        (("http://h/a b", "--rate", "1"), "TARGET /a b is refused"),
        (("http://h/", "--rate", "1", "file"), "unexpected extra argument"),
    ],
)
def test_bad_input_names_option_value_and_range(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_unreachable_server() -> None:
    result = invoke("http://127.0.0.1:1/", "--rate", "1", "--connect-timeout", "0.1")
    assert result.exit_code == 1
    assert "cannot connect to 127.0.0.1:1 within 0.1 s" in result.stderr
    result = invoke("http://no-such-host.invalid/", "--rate", "1", "--connect-timeout", "0.1")
    assert result.exit_code == 1
    assert "no-such-host.invalid has no address" in result.stderr


def test_help_is_a_manual() -> None:
    text = invoke("--help").stdout
    for word in ("http://HOST[:PORT]/PATH", "EXAMPLES", "EXIT STATUS", "--schedule", "lateness", "[default: 64"):
        assert word in text
    places = [text.index(f"{heading}:\n") for heading in (*GroupedCommand.groups, "Other options")]
    assert places == sorted(places)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_run_and_prints_what_there_is(url: str, number: signal.Signals) -> None:
    # A path of its own: on a busy machine requests of an earlier test, which gave them up, are read still, and the
    # signal would come before the first one of this test.
    path = f"/until-{number.name}"
    seen = Ok.requests[path] = threading.Semaphore(0)
    # In a closed loop: on a busy machine it falls short of no rate.
    command = [sys.executable, "-m", "manager.cli", "load", f"{url}{path}", "--closed", "--duration", "60"]
    own = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
    try:
        process = subprocess.Popen([*command, *QUICK, "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, own)
    with process:
        for _ in range(10):  # more than there are connections, so that some were answered
            assert seen.acquire(timeout=LONG_S)
        process.send_signal(number)
        output, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 0
    assert json.loads(output)["answered"] > 0


def test_progress_is_shown_on_a_terminal(url: str) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "manager.cli", "load", f"{url}/ok", "--rate", "200", "--duration", "0.3"]
    with subprocess.Popen([*command, *QUICK], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=terminal) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # the other end was closed
            while part := os.read(controller, 1000):
                shown += part
        process.wait(timeout=LONG_S)  # its status is of no interest: this machine may be too slow for any rate
    os.close(controller)
    assert b"\r[========================]" in shown
    assert b"of 0 s" in shown
