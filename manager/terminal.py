"""All that commands print goes through here, as text alone: nothing of it is markup, and nothing acts on the terminal.

``tests/unit/test_terminal.py`` sees to it that no command prints past it.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from types import TracebackType
from typing import Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from manager.plain import plain

Cell = str | Sequence[str]
"""What is in a field of a table: a line, or several."""

_WIDE = 240


class Table:
    """A table whose cells, names and title are text: brackets are no markup, and a line stays a line."""

    def __init__(self, *columns: str, title: str = "", caption: Cell = "") -> None:
        self.columns, self.title, self.caption = columns, title, caption
        self._widths: tuple[int | None, ...] = ()
        self._rows: list[tuple[Cell, ...] | None] = []

    def stretch(self, *widths: int | None) -> None:
        """Be as wide as the terminal; a column without a width takes its part of the rest, and folds its lines."""
        self._widths = widths

    def add_row(self, *cells: Cell) -> None:
        """One more line of cells."""
        self._rows.append(cells)

    def add_section(self) -> None:
        """A line between the rows before and those after."""
        self._rows.append(None)

    def __rich__(self) -> RichTable:
        """As rich prints it."""
        table = RichTable(title=_text(self.title) if self.title else None)
        table.caption = _text(self.caption) if self.caption else None
        if self._widths:
            table.title_justify, table.expand = "left", True
        for name, width in zip_longest(self.columns, self._widths):
            folds = width is None and bool(self._widths)
            table.add_column(
                _text(name), width=width, ratio=1 if folds else None, overflow="fold" if folds else "ellipsis"
            )
        for row in self._rows:
            if row is None:
                table.add_section()
            else:
                table.add_row(*map(_text, row))
        return table


def say(line: str = "", *, err: bool = False) -> None:
    """Print a line on standard output, or standard error."""
    click.echo(plain(line), err=err)


def say_json(value: object, indent: int | None = 2) -> None:
    """Print JSON, in ASCII: also in it nothing acts on the terminal."""
    click.echo(json.dumps(value, indent=indent))


def say_json_lines(lines: str) -> None:
    """Print JSON that is written already, in ASCII."""
    click.echo(
        "".join(line if " " <= line <= "~" or line == "\n" else json.dumps(line)[1:-1] for line in lines), nl=False
    )


def show(*parts: Table | str) -> None:
    """Print tables and lines on standard output; whole tables where that is not a terminal."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE, markup=False, highlight=False, emoji=False)
    for part in parts:
        console.print(part if isinstance(part, Table) else _text(part))


class Bar(Protocol):
    """Progress that is shown on standard error where that is a terminal."""

    def advance(self) -> None:
        """One more is done."""

    def update(self, done: float, line: str = "") -> None:
        """So much of it is done; ``line`` is printed above the bar."""


class _Bar:
    def __init__(self, progress: Progress, what: str, total: float) -> None:
        self._progress = progress
        self._task = progress.add_task(plain(what), total=total)

    def advance(self) -> None:
        self._progress.advance(self._task)

    def update(self, done: float, line: str = "") -> None:
        self._progress.update(self._task, completed=done)
        if line:
            self._progress.console.print(_text(line), soft_wrap=True)


@contextmanager
def progress(what: str, total: float, *, counted: bool = True) -> Iterator[Bar]:
    """A bar in the block. ``counted``: how many of how many are done is shown, too."""
    screen = Console(stderr=True, markup=False, highlight=False, emoji=False)
    numbers = (MofNCompleteColumn(),) if counted else ()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *numbers, TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not sys.stderr.isatty(), transient=True) as shown:
        yield _Bar(shown, what, total)


def print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An error that nobody expected, for ``sys.excepthook``: what it quotes is text of others, too."""
    for part in traceback.format_exception(kind, error, trace):
        for line in part.rstrip("\n").split("\n"):
            say(line, err=True)


def _text(cell: Cell) -> Text:
    return Text("\n".join(map(plain, (cell,) if isinstance(cell, str) else cell)))
