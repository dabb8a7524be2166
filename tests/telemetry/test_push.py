"""Posting response times to the agent."""

from __future__ import annotations

import io
import json
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from manager.model.histogram import bucket_of
from manager.model.source import Push, SourceState
from manager.protocol.samples import ProblemDetails, SamplesOut
from manager.serving.server import HttpServer, Lanes
from manager.telemetry.push import MOST_BYTES, PushPages, PushRoute
from manager.telemetry.trust import is_own_address, parse_networks
from tests.telemetry.conftest import NOW_S, Fed, Running, shop, until

JSON, NDJSON = "application/json", "application/x-ndjson"
VM, NEIGHBOUR, STRANGER = "192.168.122.10", "10.1.2.3", "10.2.0.1"
OWN = "10.1.0.1"
"""Of the host itself, in a network that is believed."""
TOKEN = "a-token-of-24-characters"


def moment(offset_s: float) -> str:
    return datetime.fromtimestamp(NOW_S + offset_s, UTC).isoformat()


class Pages:
    """The agent's pages, called as a server would."""

    def __init__(self, fed: Fed) -> None:
        self.asked = 0
        self.pages = PushPages(self._ask, token=TOKEN, is_own=lambda address: address == OWN)
        self.pages.routes = {
            "shop": (PushRoute(fed.feed, frozenset({VM}), parse_networks(["10.1.0.0/16", "fd00::/8"])),)
        }

    def _ask(self, _address: str) -> None:
        self.asked += 1

    def call(self, body: bytes = b"", kind: str = JSON, path: str = "/samples/shop", method: str = "POST",
             sender: str = VM, length: int | None = None,
             authorization: str = "") -> tuple[int, dict[str, str], bytes]:  # fmt: skip
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "CONTENT_TYPE": kind,
            "CONTENT_LENGTH": str(len(body) if length is None else length),
            "REMOTE_ADDR": sender,
            "HTTP_AUTHORIZATION": authorization,
            "wsgi.input": io.BytesIO(body),
        }
        answers: list[tuple[str, list[tuple[str, str]]]] = []
        content = b"".join(self.pages(environ, lambda status, headers: answers.append((status, headers))))
        [(status, headers)] = answers
        return int(status.split()[0]), dict(headers), content


@pytest.fixture
def pages(fed: Fed) -> Pages:
    return Pages(fed)


def test_a_batch_is_counted(pages: Pages, fed: Fed) -> None:
    body = {"times_ms": [1.0, 2.0, 300.0], "buckets": {str(bucket_of(5000)): 7}, "end": moment(-1)}
    status, headers, content = pages.call(json.dumps(body).encode(), "application/json; charset=utf-8")
    assert (status, headers["Content-Type"]) == (200, JSON)
    assert SamplesOut.model_validate_json(content) == SamplesOut(accepted=10, late=0)
    assert (fed.count, fed.requests, fed.status.accepted) == (10, 10, 10)
    assert [slot.start_s for slot in fed.store.recent()] == [NOW_S - 5]


def test_a_sample_of_many_requests_tells_their_number(pages: Pages, fed: Fed) -> None:
    assert pages.call(b'{"times_ms": [1.0], "requests": 250}')[0] == 200
    assert pages.call(b'{"requests": 0}')[0] == 200
    assert (fed.count, fed.requests) == (1, 250)


def test_lines_are_counted_where_they_ended(pages: Pages, fed: Fed) -> None:
    lines = [{"time_ms": 12.5}, {"time_ms": 8, "end": moment(-7)}, {"time_ms": 8, "end": moment(-60)}]
    body = "\n".join(map(json.dumps, lines)) + "\n\n"
    status, _, content = pages.call(body.encode(), NDJSON)
    assert (status, json.loads(content)) == (200, {"accepted": 2, "late": 1})
    assert [(slot.start_s, slot.histogram.count) for slot in fed.store.recent()] == [(NOW_S - 10, 1), (NOW_S - 5, 1)]
    assert (fed.status.accepted, fed.status.late) == (2, 1)


def test_a_late_batch_is_counted_as_late(pages: Pages, fed: Fed) -> None:
    body = {"times_ms": [1.0, 2.0], "end": moment(-60)}
    assert json.loads(pages.call(json.dumps(body).encode())[2]) == {"accepted": 0, "late": 2}
    assert (fed.count, fed.status.late) == (0, 2)


@pytest.mark.parametrize(
    ("body", "kind", "status", "field"),
    [
        (b"", JSON, 400, "body"),
        (b"{", JSON, 400, "body"),
        (b"[]", JSON, 422, "body"),
        (b'{"times_ms": [1, -2]}', JSON, 422, "times_ms[1]"),
        (b'{"times_ms": ["1"]}', JSON, 422, "times_ms[0]"),
        (b'{"times_ms": [NaN]}', JSON, 422, "times_ms[0]"),
        (b'{"buckets": {"1": 2}}', JSON, 422, "buckets.1.[key]"),
        (b'{"time_ms": [1]}', JSON, 422, "time_ms"),
        (b'{"end": "yesterday"}', JSON, 422, "end"),
        (json.dumps({"end": moment(60)}).encode(), JSON, 422, "end"),
        (json.dumps({"start": moment(0), "end": moment(-1)}).encode(), JSON, 422, "start"),
        (b'{"time_ms": 1}\n{"time_ms": -1}\n', NDJSON, 422, "line 2: time_ms"),
        (b'{"time_ms": 1}\n{"time_ms": 1', NDJSON, 400, "line 2"),
        (b'{"time_ms": 1}\n\n{}\n', NDJSON, 422, "line 3: time_ms"),
        (json.dumps({"time_ms": 1, "end": moment(2)}).encode(), NDJSON, 422, "line 1: end"),
        (b"times", "text/plain", 415, None),
        (b"times", "", 415, None),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_used_names_the_field_and_counts_nothing(
    pages: Pages, fed: Fed, body: bytes, kind: str, status: int, field: str | None
) -> None:
    answered, headers, content = pages.call(body, kind)
    problem = ProblemDetails.model_validate_json(content)
    assert (answered, problem.status, problem.field) == (status, status, field)
    assert headers["Content-Type"] == "application/problem+json"
    assert int(headers["Content-Length"]) == len(content)
    assert (fed.count, fed.status.malformed, fed.status.accepted) == (0, 1, 0)


def test_a_body_that_is_too_large_is_not_read(pages: Pages, fed: Fed) -> None:
    status, _, content = pages.call(length=MOST_BYTES + 1)
    assert (status, fed.status.malformed) == (413, 1)
    assert str(MOST_BYTES) in json.loads(content)["detail"]


@pytest.mark.parametrize("sender", [VM, f"::ffff:{VM}", NEIGHBOUR, "unix", "fd00::7"])
def test_who_is_believed(pages: Pages, fed: Fed, sender: str) -> None:
    assert pages.call(b'{"times_ms": [1]}', sender=sender)[0] == 200
    assert (fed.count, pages.asked) == (1, 0)


@pytest.mark.parametrize("sender", [STRANGER, "192.168.122.11", "2001:db8::1", "127.0.0.1", "::1", "127.3.2.1", OWN])
def test_who_is_not(pages: Pages, fed: Fed, sender: str) -> None:
    status, _, content = pages.call(b'{"times_ms": [1]}', sender=sender)
    assert (status, fed.count, fed.status.refused, pages.asked) == (403, 0, 1, 1)
    assert sender in json.loads(content)["detail"]


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (TOKEN, 403),
        (f"Basic {TOKEN}", 403),
        ("Bearer ü", 403),
        ("Bearer ", 403),
    ],
)
def test_on_the_host_itself_a_token_is_needed(pages: Pages, authorization: str, status: int) -> None:
    assert pages.call(b'{"times_ms": [1]}', sender="127.0.0.1", authorization=authorization)[0] == status


def test_without_a_token_set_none_is_right(fed: Fed) -> None:
    pages = Pages(fed)
    pages.pages = PushPages()
    pages.pages.routes = {"shop": (PushRoute(fed.feed, frozenset(), ()),)}
    assert pages.call(b'{"times_ms": [1]}', sender="127.0.0.1", authorization="Bearer ")[0] == 403


def test_the_machines_own_addresses_are_known() -> None:
    assert is_own_address("127.0.0.1") and is_own_address("127.9.9.9") and is_own_address("::1")
    assert not is_own_address("192.0.2.1") and not is_own_address("2001:db8::1")
    # Without any network there is no other.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route, suppress(OSError):
        route.connect(("192.0.2.1", 9))
        assert is_own_address(route.getsockname()[0])


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/samples/shop", 405, "POST"),
        ("GET", "/metrics", 404, None),
        ("POST", "/samples/other", 404, None),
        ("POST", "/samples/", 404, None),
        ("GET", "/", 404, None),
    ],
)
def test_what_is_not_there(pages: Pages, method: str, path: str, status: int, allow: str | None) -> None:
    answered, headers, content = pages.call(b"{}", method=method, path=path)
    assert (answered, headers.get("Allow"), ProblemDetails.model_validate_json(content).status) == (
        status,
        allow,
        status,
    )


def test_of_several_sources_the_first_that_believes_counts(pages: Pages, fed: Fed) -> None:
    first, second = fed.another("first"), fed.another("second")
    pages.pages.routes = {
        "shop": (PushRoute(first, frozenset({VM}), ()), PushRoute(second, frozenset(), parse_networks([NEIGHBOUR])))
    }
    for sender in (VM, VM, NEIGHBOUR):
        pages.call(b'{"times_ms": [1]}', sender=sender)
    assert (first.status().accepted, second.status().accepted) == (2, 1)


@pytest.fixture
def served(running: Running, tmp_path: Path) -> Iterator[httpx.Client]:
    unix = tmp_path / "run" / "push.sock"
    server = HttpServer(running.sources.pages, "127.0.0.1", 0, Lanes(4), unix=unix)
    server.start()
    assert (stat.S_IMODE(unix.stat().st_mode), stat.S_IMODE(unix.parent.stat().st_mode)) == (0o660, 0o700)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(unix)), base_url="http://agent") as client:
        client.tcp = f"http://127.0.0.1:{server.addresses[0][1]}"  # type: ignore[attr-defined]
        yield client
    server.close()


def test_over_real_connections_from_many_threads(running: Running, served: httpx.Client) -> None:
    running.configure(shop(Push("app")))
    batch = {"times_ms": [1.5] * 1000}
    lines = b'{"time_ms": 1.5}\n' * 1000
    answers: list[httpx.Response] = []

    def post() -> None:
        for _ in range(5):
            answers.append(served.post("/samples/shop", json=batch))
            answers.append(served.post("/samples/shop", content=lines, headers={"Content-Type": NDJSON}))

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(one.status_code, one.text) for one in answers} == {(200, '{"accepted":1000,"late":0}')}
    assert running.count() == running.status("app").accepted == 40_000
    assert running.status("app").state is SourceState.OK
    assert served.get("/metrics").status_code == 404
    assert httpx.post(served.tcp + "/samples/shop", json=batch, trust_env=False).status_code == 403  # type: ignore[attr-defined]


def test_a_push_source_that_goes_takes_nothing_more(running: Running, served: httpx.Client) -> None:
    running.configure(shop(Push("app", ("no network",))))
    assert running.status("app").state is SourceState.FAILING
    assert "no network" in running.status("app").detail
    running.configure(shop(Push("app", ("10.0.0.0/8",))))
    assert served.post("/samples/shop", json={"times_ms": [1]}).status_code == 200
    running.configure()
    assert served.post("/samples/shop", json={"times_ms": [1]}).status_code == 404
    until(lambda: running.count() == 1, "what was counted stays")
