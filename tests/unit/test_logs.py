"""Lines of the log: as text, as JSON, and what they were written in the course of."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable

import pytest

from manager.logs import REQUEST_ID, TICK_NUMBER, formatter, within

Log = tuple[logging.Logger, Callable[[], str]]


def logger(kind: str) -> Log:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter(kind))
    made = logging.Logger("manager.some.where")
    made.addHandler(handler)
    return made, stream.getvalue


def test_text_names_the_request_or_the_tick_at_the_end() -> None:
    log, written = logger("text")
    log.warning("no %s", "disk")
    with within(REQUEST_ID, "abc-123"):
        log.info("one")
    with within(TICK_NUMBER, "7"):
        log.info("two")
    plain, asked, ticked = written().splitlines()
    assert re.fullmatch(r"[\d-]+ [\d:,]+ WARNING manager\.some\.where: no disk", plain)
    assert asked.endswith("manager.some.where: one [request_id abc-123]")
    assert ticked.endswith("manager.some.where: two [tick 7]")


def test_json_is_one_object_a_line_whatever_is_said() -> None:
    log, written = logger("json")
    log.error('two\nlines and a "quote": %s', "ü\u2028")
    with within(REQUEST_ID, "abc-123"), within(TICK_NUMBER, "7"):
        try:
            raise ValueError("it broke")
        except ValueError:
            log.exception("failed")
    lines = written().split("\n")
    assert lines.pop() == ""
    first, second = map(json.loads, lines)
    at = first.pop("at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", at)
    message = 'two\nlines and a "quote": ü\u2028'
    assert first == {"level": "error", "logger": "manager.some.where", "message": message}
    assert (second["request_id"], second["tick"], second["message"]) == ("abc-123", "7", "failed")
    assert second["exception"].splitlines()[-1] == "ValueError: it broke"


def test_a_block_that_fails_leaves_no_mark() -> None:
    with pytest.raises(ValueError, match="out"), within(TICK_NUMBER, "7"):
        raise ValueError("out")
    assert TICK_NUMBER.get() == ""
