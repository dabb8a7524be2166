"""Notifications to systemd, sd_notify(3), and its watchdog."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)


class Notifier:
    """Notifies systemd, if it listens. Thread-safe."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        ours = environment.get("WATCHDOG_PID", "") in {"", str(os.getpid())}
        usec = environment.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(usec) / 1e6 if ours and usec.isdecimal() and int(usec) else None
        """Time without a ping after which systemd ends this process; None: it does not watch."""

    def ready(self, status: str = "") -> None:
        """Started."""
        self._send("READY=1", status)

    def stopping(self, status: str = "") -> None:
        """Stopping."""
        self._send("STOPPING=1", status)

    def alive(self, status: str = "") -> None:
        """A ping."""
        self._send("WATCHDOG=1", status)

    def status(self, text: str) -> None:
        """A line for `systemctl status`."""
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
    """Pings in a thread of its own while ``hanging`` returns nothing; else reports once what hangs."""

    def __init__(self, notifier: Notifier, hanging: Callable[[], str]) -> None:
        self._notifier = notifier
        self._hanging = hanging
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start, if systemd watches."""
        if self._notifier.watchdog_s is not None:
            self._thread.start()

    def close(self) -> None:
        """End; the unit limits the rest of the stop."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        reported = ""
        while True:
            problem = self._hanging()
            if not problem:
                self._notifier.alive("recovered" if reported else "")
            elif not reported:
                log.critical("%s: no more watchdog pings to systemd", problem)
                self._notifier.status(problem)
            reported = problem
            if self._stop.wait((self._notifier.watchdog_s or 1.0) / 4):
                return
