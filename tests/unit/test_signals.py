"""A signal ends a process whichever of its threads the kernel gives it to."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from manager.cli.options import stop_signal

PROGRAM = """
import signal, threading
from manager.cli.options import stop_signal, wait

def send():
    print("ready", flush=True)
    input()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

with stop_signal() as stop:
    threading.Thread(target=send, daemon=True).start()
    wait(stop)
print("ended")
"""


def test_a_signal_that_another_thread_gets_ends_the_wait() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            said, _ = process.communicate("\n", timeout=120)
        finally:
            process.kill()
    assert said == "ended\n"


@pytest.mark.parametrize(("before", "stops"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_sighup_stops_what_nohup_does_not_keep_from_it(before: signal.Handlers, stops: bool) -> None:
    own = signal.signal(signal.SIGHUP, before)
    try:
        with stop_signal(signal.SIGHUP) as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.is_set() == stops
        assert signal.getsignal(signal.SIGHUP) == before
    finally:
        signal.signal(signal.SIGHUP, own)
