"""Held batch VMs are released whatever happens to the process that holds them: real processes, a small manager."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from manager.cli.batch_hold import HELD_PCPUS, held, remedy
from manager.cli.options import Failure
from manager.protocol.client import ManagerClient

ROOT = Path(__file__).parents[2]
VMS: dict[str, float | None] = {"hog": None, "batch-1": 2.5}

# Where the tests run in the background, SIGINT is ignored from the start.
HOLDER = """
import signal, sys, time
from manager.cli.batch_hold import held
from manager.protocol.client import ManagerClient

signal.signal(signal.SIGINT, signal.default_int_handler)
url = sys.argv[1]
with held(ManagerClient(url, "secret"), (url, "secret", ""), {"hog": None, "batch-1": 2.5}, lambda: None):
    print("held", flush=True)
    time.sleep(60)
"""


class SmallManager(ThreadingHTTPServer):
    """Keeps ``max_pcpus`` of VMs; while ``away`` it answers nothing but errors."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), SmallHandler)
        self.vms = dict(VMS)
        self.away = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def wait(self, wanted: dict[str, float | None]) -> None:
        end_s = time.monotonic() + 60
        while self.vms != wanted:
            assert time.monotonic() < end_s, self.vms
            time.sleep(0.02)


class SmallHandler(BaseHTTPRequestHandler):
    server: SmallManager

    def _answer(self, body: dict[str, object], status: int = 200) -> None:
        text = json.dumps(body).encode()
        self.send_response(503 if self.server.away else status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        there = name in self.server.vms
        self._answer({"max_pcpus": self.server.vms[name]} if there else {"detail": "no such VM"}, 200 if there else 404)

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == "Bearer secret"
        if not self.server.away:
            self.server.vms[self.path.rpartition("/")[2]] = body["max_pcpus"]
        self._answer(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's signature
        pass


@pytest.fixture
def manager() -> Iterator[SmallManager]:
    with SmallManager() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


HELD = dict.fromkeys(VMS, HELD_PCPUS)


def test_held_in_the_block_and_released_after_it(manager: SmallManager) -> None:
    client = ManagerClient(manager.url, "secret")
    with held(client, (manager.url, "secret", ""), VMS, lambda: manager.wait(HELD)):
        assert manager.vms == HELD
    assert manager.vms == VMS


def test_released_after_an_error(manager: SmallManager) -> None:
    def fail() -> None:
        raise Failure("no agent acts")

    client = ManagerClient(manager.url, "secret")
    with pytest.raises(Failure, match="no agent acts"), held(client, (manager.url, "secret", ""), VMS, fail):
        pass
    assert manager.vms == VMS


def test_one_that_was_unregistered_keeps_no_other_held(manager: SmallManager) -> None:
    client = ManagerClient(manager.url, "secret")
    with held(client, (manager.url, "secret", ""), VMS, lambda: None):
        del manager.vms["hog"]
        end = threading.Timer(20, manager.vms.update, [{"hog": 1.0}])  # without it, this takes an hour
        end.start()
    assert manager.vms == {"batch-1": 2.5}
    end.cancel()


def test_what_another_user_changed_stays(manager: SmallManager) -> None:
    client = ManagerClient(manager.url, "secret")
    with held(client, (manager.url, "secret", ""), VMS, lambda: None):
        manager.vms["hog"] = 4.0
    assert manager.vms == {**VMS, "hog": 4.0}


def test_release_waits_for_a_manager_that_is_away(manager: SmallManager) -> None:
    client = ManagerClient(manager.url, "secret")
    with held(client, (manager.url, "secret", ""), VMS, lambda: None):
        manager.away = True
        threading.Timer(1.5, lambda: setattr(manager, "away", False)).start()
    assert manager.vms == VMS


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_released_when_the_holder_is_killed(manager: SmallManager, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, manager.url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert manager.vms == HELD
        holder.send_signal(number)
        holder.wait(60)
        manager.wait(VMS)


def test_the_remedy_names_what_they_had() -> None:
    assert remedy(VMS) == ('PATCH /api/v1/vms/hog {"max_pcpus": null}; PATCH /api/v1/vms/batch-1 {"max_pcpus": 2.5}')
