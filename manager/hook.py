"""The socket at which libvirt's hook (deploy/libvirt/hooks) announces starting VMs and waits; for root alone.

The request is a line ``started UUID NAME``; closing the connection is the answer.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

_MOST_BYTES = 4096
_SLOW_S = 1.0
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_REST_S = 0.1

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
        # So Linux creates the file with this mode.
        os.fchmod(self.socket.fileno(), 0o600)
        super().server_bind()

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_ROOM:  # the hook stays in the queue: without a rest this would be asked all the time
                time.sleep(_REST_S)
            raise

    def handle_error(self, _request: object, _client_address: object) -> None:
        log.exception("libvirt's hook")


class HookSocket:
    """Listens from its creation on, in its own threads."""

    def __init__(self, path: Path, started: Callable[[str, str], None]) -> None:
        """``started`` gets a domain's UUID and name, and returns when libvirt may continue. Raises OSError."""
        path.unlink(missing_ok=True)
        self._path = path
        self._server = _HookServer(path, started)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hook", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing:
            self._server.handle_request()  # serve_forever would wake up twice a second

    def close(self) -> None:
        """Stop, and remove the socket: hooks then do nothing."""
        self._closing = True
        self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._server.server_close()
        self._path.unlink(missing_ok=True)
