"""The REST interface from the outside, for the agent and the command line."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from select import POLLIN, poll
from socket import socket
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

from pydantic_core import from_json

from manager.errors import ManagerRefused, ManagerUnavailable
from manager.protocol.http_answer import ParsedAnswer

API = "/api/v1"
ANSWER_S = 10.0
"""An answer comes in this time, mostly at once."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a manager answered. Names of ``headers`` are taken in any case."""

    status: int
    headers: Message
    content: bytes

    def json(self) -> Any:
        """The body. Raises ValueError when it is not JSON."""
        return from_json(self.content)


class Network(Protocol):
    """What carries requests to a manager."""

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Send a request for a path with a query. Raises OSError, HTTPException."""

    def close(self) -> None:
        """Close the connection."""


class Connection:
    """A connection to one manager, kept between requests. Safe to use from several threads, one after the other."""

    def __init__(
        self, url: str, *, connect_s: float = 3.0, answer_s: float = ANSWER_S, authorities: ssl.SSLContext | None = None
    ) -> None:
        """Nothing is asked yet. Raises ManagerUnavailable for what is no http or https URL.

        By https, whoever has no certificate for the URL's name from ``authorities`` (None: those that the system
        trusts) gets no request.
        """
        if "@" in url:  # and it is not shown
            raise ManagerUnavailable("the URL of a manager has no name or password before an @: a token says who asks")
        try:
            parsed = urlsplit(url)
            if parsed.scheme not in {"http", "https"} or not parsed.hostname:
                raise ManagerUnavailable(f"{url!r} is not the URL of a manager: it begins with http:// or https://")
            self._connection: HTTPConnection
            if parsed.scheme == "https":
                context = authorities or ssl.create_default_context()
                self._connection = HTTPSConnection(parsed.hostname, parsed.port, timeout=connect_s, context=context)
            else:
                self._connection = HTTPConnection(parsed.hostname, parsed.port, timeout=connect_s)
        except (ValueError, HTTPException) as error:
            raise ManagerUnavailable(f"{url!r} is not the URL of a manager: {error}") from error
        self._connection.response_class = ParsedAnswer
        self._answer_s = answer_s
        self._path = parsed.path
        self._lock = threading.Lock()

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """Send a request for a path with a query. Raises OSError, HTTPException."""
        with self._lock:
            try:
                self._connect()
                self._connection.request(method, self._path + target, body, dict(headers))
                answer = self._connection.getresponse()
                return Answer(answer.status, answer.headers, answer.read())
            except BaseException:  # whatever ends it, what comes later must not be taken for the next one's answer
                self._connection.close()
                raise

    def _connect(self) -> None:
        """Open the connection, also where the manager has closed it since, so that no request need be sent twice."""
        open_socket: socket | None = self._connection.sock
        if open_socket is not None:
            closing = poll()
            closing.register(open_socket, POLLIN)
            if not closing.poll(0):
                return
            self._connection.close()
        self._connection.connect()
        self._connection.sock.settimeout(self._answer_s)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()


class ManagerClient:
    """Speaks JSON with a manager. Every failure is a ManagerUnavailable whose text says what to do."""

    def __init__(
        self,
        url: str,
        token: str,
        network: Network | None = None,
        authorities: ssl.SSLContext | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        """``url`` is the manager's, without the API's path. Raises ManagerUnavailable when it is none.

        ``authorities`` and ``answer_s`` as of ``Connection``.
        """
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._network = network or Connection(self._url, authorities=authorities, answer_s=answer_s)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: str | None = None,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Call ``path`` below /api/v1, with ``body`` as JSON or with JSON as ``content``.

        Any status but success and 304 raises ManagerUnavailable with the problem's detail: a redirect comes from
        something that is not a manager.
        """
        query = {name: value for name, value in (params or {}).items() if value}
        asked = urlencode(query, errors="surrogateescape")
        target = API + quote(path, errors="surrogateescape") + (f"?{asked}" if asked else "")
        sent = json.dumps(body) if body is not None else content
        all_headers = self._headers | (headers or {})
        if sent is not None:
            all_headers["Content-Type"] = "application/json"
        try:
            answer = self._network.exchange(method, target, all_headers, None if sent is None else sent.encode())
        except ssl.SSLCertVerificationError as error:
            why = f"its certificate is not believed: {error.verify_message or error}"
            hint = "manager_ca_file names the authorities to believe, and manager_url a name that the certificate has"
            raise ManagerUnavailable(f"the manager at {self._url} gets no request, {why}. {hint}") from error
        except (OSError, HTTPException) as error:
            raise ManagerUnavailable(f"the manager at {self._url} does not answer: {error}") from error
        if not 200 <= answer.status < 300 and answer.status != HTTPStatus.NOT_MODIFIED:
            problem, fields = _problem(answer)
            raise ManagerRefused(f"{method} {API}{path}: {problem}", answer.status, fields)
        return answer

    def get(self, path: str, **params: str) -> Any:
        """The JSON answer of a GET. Raises ManagerUnavailable, also when the answer is no object of JSON."""
        return self._object(self.request("GET", path, params=params))

    def change(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The JSON answer to a request that changes something. Raises ManagerUnavailable as ``get``."""
        return self._object(self.request(method, path, body=body))

    def _object(self, answer: Answer) -> dict[str, Any]:
        try:
            content = answer.json()
        except ValueError as error:
            raise self._no_manager(f"{error}") from error
        if not isinstance(content, dict):
            raise self._no_manager(f"with {type(content).__name__} in place of an object")
        return content

    def items(self, path: str, limit: int | None = None, **params: str) -> list[Any]:
        """All items of a paginated list, or the first ``limit``."""
        items: list[Any] = []
        cursor = ""
        while True:
            page_size = min(1000, limit - len(items)) if limit is not None else 1000
            page = self.get(path, **params, cursor=cursor, limit=str(page_size))
            if not isinstance(page.get("items"), list):
                raise self._no_manager("without a list of items")
            items.extend(page["items"])
            cursor = page.get("next") or ""
            if not cursor or (limit is not None and len(items) >= limit):
                return items

    def _no_manager(self, why: str) -> ManagerUnavailable:
        return ManagerUnavailable(f"{self._url} answers, but not as a manager does: {why}")

    def close(self) -> None:
        """Close the connection."""
        self._network.close()


def _problem(answer: Answer) -> tuple[str, list[tuple[str, str]]]:
    """Status and detail of a problem+json answer, and its bad fields, each with what is wrong."""
    try:
        problem = answer.json()
        fields = [(str(field["field"]), str(field["message"])) for field in problem.get("errors", [])]
        detail = str(problem["detail"])
        words = "; ".join(text for field, message in fields if (text := f"{field}: {message}") not in detail)
        return f"{answer.status} {detail}" + (f" ({words})" if words else ""), fields
    except (ValueError, KeyError, TypeError, AttributeError):
        phrases = {status.value: status.phrase for status in HTTPStatus}
        return f"{answer.status} {phrases.get(answer.status, '')}".rstrip(), []
