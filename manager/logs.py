"""Log lines as text or JSON, each with the request or tick during which it was written."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from manager.plain import plain

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""Of the current request; empty outside one."""
TICK_NUMBER: ContextVar[str] = ContextVar("tick", default="")
"""Number of the current tick; empty outside one."""

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_MARKS = {"request_id": REQUEST_ID, "tick": TICK_NUMBER}


@contextmanager
def within(what: ContextVar[str], name: str) -> Iterator[None]:
    """Mark the lines logged in the block."""
    token = what.set(name)
    try:
        yield
    finally:
        what.reset(token)


def formatter(kind: str) -> logging.Formatter:
    """Lines as ``text`` or ``json``, the choices of the setting ``log_format``."""
    return JsonLines() if kind == "json" else TextLines(_TEXT)


def _marks() -> dict[str, str]:
    return {name: value for name, variable in _MARKS.items() if (value := variable.get())}


class TextLines(logging.Formatter):
    """One plain line each, with the request or tick at the end; tracebacks are indented.

    So no quoted text can pass for another line or act on a terminal.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """The line without a traceback."""
        marks = "".join(f" [{name} {value}]" for name, value in _marks().items())
        return plain(super().formatMessage(record) + marks)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        """The traceback."""
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - the library's name
        """Where a line was logged."""
        return _indented(super().formatStack(stack_info))


def _indented(lines: str) -> str:
    return "\n".join(f"    {plain(line)}" for line in lines.split("\n"))


class JsonLines(logging.Formatter):
    """An object per line: at (RFC 3339, UTC), level, logger, message, and if any request_id, tick and exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The whole line, traceback included."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_marks(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
