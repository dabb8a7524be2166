"""Write man pages and shell completion of all commands below a prefix: `python3 -m deploy.manual DIR`.

The installer runs it with the Python that it installed, and so does the package. Both come of the commands themselves:
a page has what `--help` says, and completion is click's.
"""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from deploy.reference import commands
from manager import __version__
from manager.cli import main

_COMPLETION = {
    "bash": "share/bash-completion/completions/equipoise",
    "fish": "share/fish/vendor_completions.d/equipoise.fish",
    "zsh": "share/zsh/site-functions/_equipoise",
}
"""Where shells look for it, below /usr and /usr/local."""


def page_name(context: click.Context) -> str:
    """As `man` is asked for it: `equipoise-token-create`."""
    return context.command_path.replace(" ", "-")


def man_page(context: click.Context) -> str:
    """The page of one command in the man macros of roff."""
    command = context.command
    formatter = click.HelpFormatter(width=80)
    command.format_epilog(context, formatter)
    lines = [
        f'.TH "{page_name(context).upper()}" 1 "" "Equipoise {__version__}" "Equipoise"',
        ".SH NAME",
        _text(f"{page_name(context)} - {command.get_short_help_str(limit=200)}"),
        ".SH SYNOPSIS",
        f".B {_text(context.command_path)}",
        _text(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        _text(inspect.cleandoc(command.help or "")).replace("\n\n", "\n.PP\n"),
        ".SH OPTIONS",
        *(_entry(*record) for one in command.get_params(context) if (record := one.get_help_record(context))),
    ]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        below = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        lines += [_entry(name, one.get_short_help_str(limit=200)) for name, one in below if one is not None]
    lines += [_laid_out(line) for line in formatter.getvalue().strip().splitlines()]
    if context.parent is not None:
        lines += [".fi", ".SH SEE ALSO", f".BR {_text(page_name(context.parent))} (1)"]
    return "\n".join(lines) + "\n"


def _entry(term: str, meaning: str) -> str:
    return f".TP\n.B {_text(term)}\n{_text(meaning)}"


def _laid_out(line: str) -> str:
    """A line of what stands below the options, laid out by hand under headings in capitals."""
    return f".fi\n.SH {line}\n.nf" if re.fullmatch(r"[A-Z][A-Z ]+", line) else _text(line)


def _text(text: str) -> str:
    """Text that roff shows as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def write(prefix: Path) -> None:
    """All of it below a folder that stands for /usr or /usr/local."""
    for context in commands(click.Context(main, info_name="equipoise")):
        _put(prefix / f"share/man/man1/{page_name(context)}.1", man_page(context))
    for shell, place in _COMPLETION.items():
        completion = get_completion_class(shell)
        if completion is not None:
            _put(prefix / place, completion(main, {}, "equipoise", "_EQUIPOISE_COMPLETE").source())


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python3 -m deploy.manual", description=__doc__)
    parser.add_argument("prefix", type=Path, metavar="DIR", help="what stands for /usr or /usr/local")
    write(parser.parse_args().prefix)
