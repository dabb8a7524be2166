"""Notifies systemd of this process, sd_notify(3): one datagram to the socket that it names in the environment."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)


class Notifier:
    """Tells systemd; where it does not listen, nothing happens. Thread-safe."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        told_pid = environment.get("WATCHDOG_PID", "")
        ours = not told_pid or told_pid == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(usec) / 1e6 if ours and usec.isdecimal() and int(usec) else None
        """After so long without a ping systemd ends this process; None: it does not watch."""

    def ready(self, status: str = "") -> None:
        """The start is over."""
        self._send("READY=1", status)

    def stopping(self, status: str = "") -> None:
        """The end has begun."""
        self._send("STOPPING=1", status)

    def alive(self, status: str = "") -> None:
        """What is watched goes on."""
        self._send("WATCHDOG=1", status)

    def status(self, text: str) -> None:
        """One line that `systemctl status` shows."""
        self._send("", text)

    def _send(self, state: str, status: str) -> None:
        if not self._address:
            return
        lines = [line for line in (state, f"STATUS={' '.join(status.split())}" if status else "") if line]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as outlet:
                outlet.settimeout(1.0)
                outlet.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.warning("systemd cannot be notified of %s: %s", lines, error)


class Watchdog:
    """Pings while ``hanging`` finds none, in a thread of its own; else says once what it found, and no more pings.

    ``hanging`` tells what is wrong, empty for nothing.
    """

    def __init__(self, notifier: Notifier, hanging: Callable[[], str]) -> None:
        self._notifier = notifier
        self._hanging = hanging
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin, where systemd watches."""
        if self._notifier.watchdog_s is not None:
            self._thread.start()

    def close(self) -> None:
        """End; what comes then has the time that the unit gives it."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        said = ""
        while True:
            problem = self._hanging()
            if not problem:
                self._notifier.alive("" if not said else "goes on")
            elif not said:
                log.critical("%s: systemd is not told any more that all is well", problem)
                self._notifier.status(problem)
            said = problem
            if self._stop.wait((self._notifier.watchdog_s or 1.0) / 4):
                return
