"""Answers by HTTP/1.1 to a connection of the standard library, read by httptools.

The library's own way reads headers as those of a mail, which is nearly half of what an exchange costs an agent.
"""

from __future__ import annotations

from http.client import HTTPException, HTTPMessage, HTTPResponse, IncompleteRead, RemoteDisconnected
from socket import socket
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MOST_BYTES = 16 * 1024 * 1024
"""What is read of an answer: several times a page of a thousand items. Nobody makes a client hold more."""
_PART_BYTES = 65_536
_MOST_HEADERS = 100
_FINAL = 200
"""An answer with a lower status comes before another one: RFC 9110, 15.2."""


class ParsedAnswer(HTTPResponse):
    """The ``response_class`` of an HTTPConnection: ``begin`` reads all of an answer.

    The methods whose names begin with ``on_`` are for the parser.
    """

    def __init__(self, sock: socket, *_given: Any, **_named: Any) -> None:
        self.fp = None  # type: ignore[assignment] # as the library has it once nothing is left to be read
        self.headers, self.status = HTTPMessage(), 0
        self._socket = sock
        self._parser = HttpResponseParser(self)
        self._body = bytearray()
        self._count = 0
        self._complete = False

    def begin(self) -> None:
        """Read it. Raises OSError, HTTPException."""
        try:
            while not self._complete:
                part = self._socket.recv(_PART_BYTES)
                if not part:
                    self._end()
                    break
                self._count += len(part)
                if self._count > MOST_BYTES:
                    raise HTTPException(f"its answer is longer than {MOST_BYTES} bytes")
                self._parser.feed_data(part)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise HTTPException(f"its answer is none by HTTP/1.1: {error}") from error
        finally:
            del self._parser  # each holds the other, and an agent seldom looks for such

    def read(self, _most: int | None = None) -> bytes:
        """The whole body."""
        return bytes(self._body)

    def _end(self) -> None:
        """The connection has ended. Raises HTTPException where that does not end the answer: RFC 9112, 6.3."""
        if not self._count:
            raise RemoteDisconnected("it closed the connection without an answer")
        if not self.status or "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            raise IncompleteRead(self.read())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Raises HTTPException where there are too many."""
        if len(self.headers) == _MOST_HEADERS:
            raise HTTPException(f"its answer has more than {_MOST_HEADERS} headers")
        self.headers[name.decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Take what is known of it before its body. Raises HTTPException for another answer at once."""
        if self._complete:
            raise HTTPException("it gives more than one answer")
        self.status = self._parser.get_status_code()
        self.will_close = not self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        """Take a part of its body."""
        self._body += part

    def on_message_complete(self) -> None:
        """Wait for the next one where this one only comes before it."""
        if self.status >= _FINAL:
            self._complete = True
        else:
            self.headers, self.status = HTTPMessage(), 0
