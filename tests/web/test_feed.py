"""The stream that tells a page of changes."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from manager.api.manager_server import ManagerServer, make_server
from manager.settings import load_settings
from manager.store.database import Database
from manager.store.tokens import Role
from tests.web.desk import Desk
from webui.dashboard import install_dashboard
from webui.live_feed import ALIVE_S, LEAST_S, STREAM_S, tell


class Marks:
    """A clock that waiting moves, and marks that come at certain times (seconds)."""

    def __init__(self, marks: dict[float, str], gone_s: float = 1e9) -> None:
        self.time_s = 0.0
        self.gone_s = gone_s
        self._marks = marks

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds

    def wait(self, seen: str, timeout_s: float) -> str | None:
        if self.time_s >= self.gone_s:
            return None
        later = [at for at, mark in self._marks.items() if self.time_s < at <= self.time_s + timeout_s]
        current = self._marks[max(at for at in self._marks if at <= self.time_s)]
        if current != seen:
            return current
        self.time_s = min(later, default=self.time_s + timeout_s)
        return self._marks[max(at for at in self._marks if at <= self.time_s)]

    def events(self, seen: str | None = None) -> list[tuple[str, str]]:
        told = "".join(tell(self.wait, seen, self.now_s, self.sleep))
        pairs = [event.split("\n") for event in told.removesuffix("\n\n").split("\n\n")]
        return [(kind.removeprefix("event: "), data.removeprefix("data: ")) for kind, data in pairs if kind]


def test_a_quiet_stream_says_that_it_is_there_and_ends_by_itself() -> None:
    alive = [("alive", "a")] * int((STREAM_S - 1) // ALIVE_S)
    assert Marks({0: "a"}).events() == [("hello", "a"), *alive, ("bye", "a")]


def test_a_change_is_told_with_its_mark() -> None:
    assert ("changed", "b") in Marks({0: "a", 4: "b"}).events()


def test_what_changed_between_two_streams_is_told_at_once() -> None:
    assert Marks({0: "b"}).events("a")[:2] == [("hello", "b"), ("changed", "b")]
    assert ("changed", "b") not in Marks({0: "b"}).events("b")


def test_many_changes_are_told_once_a_second() -> None:
    marks = {number / 10: str(number) for number in range(int(10 * STREAM_S))}
    changed = [event for event in Marks(marks).events() if event[0] == "changed"]
    assert STREAM_S / LEAST_S / 3 < len(changed) <= STREAM_S / LEAST_S


def test_it_ends_when_nobody_listens_any_more() -> None:
    events = Marks({0: "a"}, gone_s=3).events()
    assert events == [("hello", "a")]


def test_a_topic_is_needed_and_a_session(desk: Desk) -> None:
    assert desk.browser().get("/live?topic=nothing").status == 400
    signed_out = desk.browser(None).get("/live?topic=fleet")
    assert signed_out.status == 303
    assert "/sign-in" in signed_out.response.headers["Location"]


def test_a_stream_begins_with_hello_and_makes_room_when_it_is_closed(desk: Desk) -> None:
    client = desk.browser(Role.VIEWER).client
    for _ in range(9):  # more than are allowed at once
        with client.get("/live?topic=fleet") as response:
            assert response.status_code == 200
            assert response.mimetype == "text/event-stream"
            assert next(iter(response.response)).startswith(b"event: hello\n")  # type: ignore[arg-type]
    held = [client.get("/live?topic=decisions") for _ in range(4)]
    assert client.get("/live?topic=decisions").status_code == 503
    for response in held:
        response.close()


@pytest.fixture
def served(
    desk: Desk, migrated: Callable[[str], Database], tmp_path: Path
) -> Iterator[tuple[Desk, ManagerServer, httpx.Client]]:
    """A manager that listens, which allows one stream, and a browser's client that is signed in there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = {"listen_port": port, "state_dir": str(tmp_path), "live_streams": 1}
    server = make_server(load_settings(None, {}, flags), desk.database, {}, install_dashboard)
    server.start()
    # The service's clock is the real one, by which the sessions of the desk have ended long ago: a token will do.
    headers = {"Authorization": f"Bearer {desk.api.secrets['admin']}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120, verify=False) as client:
        yield desk, server, client
    with contextlib.suppress(OSError):  # a test closed it
        server.close()


def is_free(client: httpx.Client) -> bool:
    with client.stream("GET", "/live?topic=fleet") as response:
        return response.status_code == 200


def test_a_browser_is_told_and_its_place_is_free_when_it_leaves(
    served: tuple[Desk, ManagerServer, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    length_s = 10 * STREAM_S  # a busy machine takes long to see that it left, and the end of the stream is none
    monkeypatch.setattr("webui.live_feed.STREAM_S", length_s)
    desk, _, client = served
    with client.stream("GET", "/live?topic=fleet") as response:
        lines = response.iter_lines()
        assert next(lines) == "event: hello"
        assert client.get("/live?topic=fleet").status_code == 503
        desk.api.ok("PUT", "/vms/web-1", {"class": "critical"})
        assert "event: changed" in itertools.takewhile(lambda line: line != "event: bye", lines)
    deadline_s = time.monotonic() + length_s / 2
    while not is_free(client):
        assert time.monotonic() < deadline_s, "the stream of a browser that went away kept its place"


def test_the_end_of_the_server_ends_streams(served: tuple[Desk, ManagerServer, httpx.Client]) -> None:
    _, server, client = served
    with client.stream("GET", "/live?topic=fleet") as response:
        lines = response.iter_lines()
        assert next(lines) == "event: hello"
        server.close()
        assert "event: bye" not in list(lines)
