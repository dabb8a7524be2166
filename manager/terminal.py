"""All that commands print: plain text, without markup or control sequences."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from manager.errors import EquipoiseError
from manager.plain import plain

Cell = str | Sequence[str]
"""What is in a field of a table: a line, or several."""

_WIDE = 240


class Table(RichTable):
    """A table whose cells, names and title are text: brackets are no markup, and a line stays a line.

    ``widths``: the table is as wide as the terminal; a column of width None takes its part of the rest, and folds.
    """

    def __init__(
        self, *columns: str, title: str = "", caption: Cell = "", widths: Sequence[int | None] | None = None
    ) -> None:
        super().__init__(title=_text(title) if title else None, caption=_text(caption) if caption else None)
        if widths:
            self.title_justify, self.expand = "left", True
        for name, width in zip(columns, widths or [0] * len(columns), strict=True):
            folds = width is None
            self.add_column(
                _text(name), width=width or None, ratio=1 if folds else None, overflow="fold" if folds else "ellipsis"
            )

    def add_row(self, *cells: Cell) -> None:  # type: ignore[override] # nothing but text
        """Add a row."""
        super().add_row(*map(_text, cells))


def say(line: str = "", *, err: bool = False) -> None:
    """Print a line on standard output, or standard error."""
    if err:
        click.echo(plain(line), err=True)
        return
    with _printing():
        click.echo(plain(line))


@contextmanager
def _printing() -> Iterator[None]:
    """What standard output does not take is an expected error; a reader that has enough is click's matter."""
    if sys.stdout is None:
        raise EquipoiseError("standard output is closed")
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = None  # Python would write the rest again at its end, fail, and say so with status 120
        raise EquipoiseError(f"standard output cannot be written: {error.strerror}") from error


def rewrite(line: str) -> None:
    """Print a line on standard error in place of the last such one."""
    click.echo(f"\r{plain(line)}", err=True, nl=False)


def say_json(value: object) -> None:
    """Print JSON, in ASCII."""
    with _printing():
        click.echo(json.dumps(value, indent=2))


def say_json_lines(lines: str) -> None:
    """Print lines of JSON, in ASCII."""
    text = "".join(line if " " <= line <= "~" or line == "\n" else json.dumps(line)[1:-1] for line in lines)
    with _printing():
        click.echo(text, nl=False)


def show(*parts: Table | str) -> None:
    """Print tables and lines on standard output; whole tables where that is not a terminal."""
    with _printing():
        console = Console(width=None if sys.stdout.isatty() else _WIDE, markup=False, highlight=False, emoji=False)
        for part in parts:
            if isinstance(part, str):
                say(part)
            else:
                console.print(part)


def output(as_json: bool, body: object, *parts: Table | str) -> None:
    """Print ``body`` as JSON, or else tables and lines."""
    if as_json:
        say_json(body)
    else:
        show(*parts)


class Bar:
    """Progress that is shown on standard error where that is a terminal."""

    def __init__(self, shown: Progress, what: str, total: float) -> None:
        self._shown = shown
        self._task = shown.add_task(plain(what), total=total)

    def advance(self) -> None:
        """One more is done."""
        self._shown.advance(self._task)

    def update(self, done: float, line: str = "") -> None:
        """So much is done; ``line`` is printed above the bar."""
        self._shown.update(self._task, completed=done)
        if line:
            self._shown.console.print(_text(line), soft_wrap=True)


@contextmanager
def progress(what: str, total: float, *, counted: bool = True) -> Iterator[Bar]:
    """A bar in the block. ``counted``: it also shows how many of how many are done."""
    screen = Console(stderr=True, markup=False, highlight=False, emoji=False)
    numbers = (MofNCompleteColumn(),) if counted else ()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *numbers, TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not sys.stderr.isatty(), transient=True) as shown:
        yield Bar(shown, what, total)


def print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """For ``sys.excepthook``: an unexpected error as plain text."""
    for part in traceback.format_exception(kind, error, trace):
        for line in part.rstrip("\n").split("\n"):
            say(line, err=True)


def _text(cell: Cell) -> Text:
    return Text("\n".join(map(plain, (cell,) if isinstance(cell, str) else cell)))
