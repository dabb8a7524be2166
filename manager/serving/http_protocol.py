"""HTTP/1.1 as the server speaks it: uvicorn's, read by httptools, with bounds on what is not a body."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

UNSENT_BYTES = "equipoise.unsent-bytes"
"""Key of the state in a request's scope: how many bytes of earlier answers wait to be sent, when called."""

HEAD_BYTES = 32 * 1024
"""Of a request's head, and of what comes between and after the parts of a body."""


class HttpProtocol(HttpToolsProtocol):
    """One connection, which asks for one thing after the other. Used by the thread of the server's loop alone.

    httptools keeps a head of any length, and parses at once all requests that come together; so either is refused here.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._unended_bytes = 0
        self._is_over = False

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._is_over:
            return
        self._unended_bytes += len(data)
        super().data_received(data)
        if self._unended_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """Called at the first byte of a request, which raises ValueError while another one is unanswered."""
        if self.cycle is not None and not self.cycle.response_complete:
            raise ValueError("a request before the answer to another one")
        super().on_message_begin()
        self.scope["state"][UNSENT_BYTES] = self.transport.get_write_buffer_size

    def on_headers_complete(self) -> None:
        """Begin to answer. Raises ValueError for a head that is refused."""
        names = [name for name, _ in self.headers]
        hosts = names.count(b"host")
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            raise ValueError("no host, or several: RFC 9112, 3.2")
        if self.parser.should_upgrade() and (b"content-length" in names or b"transfer-encoding" in names):
            raise ValueError("a body that the parser would take for the other protocol's, or for another request")
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_BYTES:
            raise ValueError("too long")
        self._unended_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unended_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of the body."""
        self._unended_bytes = 0
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """None: a request to go on by another protocol is answered by this one, as it may be."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what came, and end the connection; a request that was asked before is answered first."""
        self._is_over = True
        cycle = self.cycle
        if cycle is None or cycle.response_complete or (cycle.more_body and not cycle.response_started):
            super().send_400_response(msg)
        elif cycle.more_body:
            self.transport.close()
        else:
            cycle.keep_alive = False
