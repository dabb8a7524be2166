"""Each request has an id: taken or made, answered, in its error, and in what is logged meanwhile. And the probes."""

from __future__ import annotations

import logging
import re

import pytest

from manager.errors import DatabaseUnavailable
from manager.logs import REQUEST_ID, formatter
from manager.store.database import Database
from tests.api.conftest import Api
from tests.web.desk import make_desk

MADE = re.compile(r"[0-9a-f]{32}")


def test_a_good_id_is_taken_and_answered(api: Api) -> None:
    assert api.call("GET", "/vms", X_Request_Id="from.the-proxy_1").headers.getlist("X-Request-Id") == [
        "from.the-proxy_1"
    ]


@pytest.mark.parametrize("given", ["", "short", "x" * 65, "a b c d e f", 'x"},{"level":"error', "größer-als"])
def test_another_is_replaced(api: Api, given: str) -> None:
    answered = api.call("GET", "/vms", X_Request_Id=given).headers.getlist("X-Request-Id")
    assert len(answered) == 1
    assert MADE.fullmatch(answered[0])


def test_each_request_has_one_of_its_own_and_none_is_left_behind(api: Api) -> None:
    ids = {api.call("GET", "/vms").headers["X-Request-Id"] for _ in range(10)}
    assert len(ids) == 10
    assert REQUEST_ID.get() == ""


def test_errors_name_it_and_so_does_the_log(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(formatter("text").format(record))

    kept = Kept()
    logging.getLogger("manager.api").addHandler(kept)
    try:
        missing = api.refused(404, "GET", "/vms/nowhere", X_Request_Id="asked-for-a-vm")
        assert missing["request_id"] == "asked-for-a-vm"

        monkeypatch.setattr(type(api.database), "ping", _broken)
        failed = api.refused(500, "GET", "//readyz", X_Request_Id="it-breaks-here")
    finally:
        logging.getLogger("manager.api").removeHandler(kept)
    assert failed["request_id"] == "it-breaks-here"
    [line] = [one for one in lines if "unexpected error in GET /readyz" in one]
    assert "[request_id it-breaks-here]" in line.splitlines()[0]


def test_what_a_page_asks_within_the_process_has_the_page_s_id(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    desk = make_desk(database)
    seen: list[str] = []
    desk.api.app.before_request(lambda: seen.append(REQUEST_ID.get()))
    browser = desk.browser()
    seen.clear()
    browser.get("/hosts", X_Request_Id="the-page-of-hosts")
    assert len(seen) > 1, "the page asks the interface"
    assert set(seen) == {"the-page-of-hosts"}


def test_probes(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("//healthz", "//readyz"):
        answer = api.call("GET", path, role="")
        assert (answer.status_code, answer.text) == (200, "ok\n")
        assert answer.headers["Cache-Control"] == "no-store"
    monkeypatch.setattr(type(api.database), "ping", _gone)
    assert api.call("GET", "//healthz", role="").status_code == 200, "a new start would not help"
    assert "Retry-After" in api.call("GET", "//readyz", role="").headers
    api.refused(503, "GET", "//readyz", role="")


def _broken(_database: Database) -> None:
    raise RuntimeError("broken")


def _gone(_database: Database) -> None:
    raise DatabaseUnavailable("it is gone")
