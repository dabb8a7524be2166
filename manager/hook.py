"""Where libvirt's hook announces VMs that start, and waits: a socket for root, since who is let in has ticks made.

A line ``started UUID NAME`` is what it says; that the connection ends is the answer. The hook is deploy/libvirt/hooks.
"""

from __future__ import annotations

import logging
import os
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

_MOST_BYTES = 4096
_SLOW_S = 1.0

log = logging.getLogger(__name__)


class _Request(socketserver.StreamRequestHandler):
    server: _HookServer
    timeout = _SLOW_S

    def handle(self) -> None:
        try:
            line, whole, _ = self.rfile.readline(_MOST_BYTES).decode().partition("\n")
            operation, uuid, name = line.split(" ", 2)
            understood = whole and operation == "started" and str(UUID(uuid)) == uuid and "/" not in name
        except (OSError, ValueError) as error:
            log.debug("libvirt's hook: %s", error)
            return
        if understood:
            self.server.started(uuid, name)


class _HookServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, started: Callable[[str, str], None]) -> None:
        self.started = started
        super().__init__(str(path), _Request)

    def server_bind(self) -> None:
        # Which the file then has from its first moment on: unix_bind() of Linux.
        os.fchmod(self.socket.fileno(), 0o600)
        super().server_bind()

    def handle_error(self, _request: object, _client_address: object) -> None:
        log.exception("libvirt's hook")


class HookSocket:
    """Listens from its creation on, in threads of its own."""

    def __init__(self, path: Path, started: Callable[[str, str], None]) -> None:
        """``started`` is called with a domain's UUID and name, and returns when libvirt may go on. Raises OSError."""
        path.unlink(missing_ok=True)
        self._path = path
        self._server = _HookServer(path, started)
        self._thread = threading.Thread(target=self._server.serve_forever, name="hook", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more, and take the socket away: hooks then do nothing."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._path.unlink(missing_ok=True)
