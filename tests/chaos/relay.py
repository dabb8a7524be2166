"""Between agent and manager: passes requests on, remembers what was acknowledged, and fails as networks do."""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DOWN, MUTE = "down", "mute"
"""Requests do not arrive; they do, but their answers get lost."""

_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host"})


class Relay:
    """An HTTP server on a free port that speaks with the manager at another."""

    def __init__(self, address: str, manager_port: int) -> None:
        self.trouble = ""
        self.acknowledged: list[dict[str, Any]] = []
        """Reports that the agent knows the manager to have: its answer went back."""
        relay, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if relay.trouble == DOWN:
                    self.close_connection = True
                    return
                connection = http.client.HTTPConnection("127.0.0.1", manager_port, timeout=30)
                try:
                    headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                    connection.request(self.command, self.path, body or None, headers)
                    answer = connection.getresponse()
                    content = answer.read()
                except (OSError, http.client.HTTPException):
                    self.close_connection = True
                    return
                finally:
                    connection.close()
                if relay.trouble == MUTE:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _HOP | {"date", "server"}:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                if self.path.endswith("/report") and answer.status == 200:
                    with lock:
                        relay.acknowledged.append(json.loads(body))

            do_GET = do_POST = do_PUT = do_PATCH = _pass  # noqa: N815 - the server's names

            def log_message(self, *_given: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Whoever is killed leaves connections behind."""

        self._server = Server((address, 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
