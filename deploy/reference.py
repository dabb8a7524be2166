"""Write docs/reference/cli.md, the reference of all commands, from the commands: `python3 -m deploy.reference`.

A test compares the two, so that the page is renewed with each change of an option.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from manager.cli import main
from manager.settings import BY_NAME

TARGET = Path(__file__).parents[1] / "docs/reference/cli.md"
_INTRODUCTION = """# Commands

Made from the commands by `python3 -m deploy.reference`; `equipoise COMMAND --help` says the same.

Options that are named as *settings* stand for settings of the same names ([configuration.md](configuration.md)), and
win over the environment and the file that `--config FILE` names. How commands end, and what to do then:
[errors.md](errors.md).
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *(_section(one) for one in commands(click.Context(main, info_name="equipoise")))])


def commands(context: click.Context) -> Iterator[click.Context]:
    """A command and all below it, each with a context of its own, in the order of their help."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            below = context.command.get_command(context, name)
            if below is not None:
                yield from commands(click.Context(below, context, name))


def _section(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path}", f"    {usage}", inspect.cleandoc(command.help or "")]
    options = [one for one in command.params if isinstance(one, click.Option)]
    settings = [one for one in options if one.name in BY_NAME]
    own = [one for one in options if one not in settings and one.name != "config"]
    if own:
        rows = "\n".join(f"| `{_shown(one)}` | {_meaning(one)} |" for one in own)
        parts.append(f"| option | meaning |\n| --- | --- |\n{rows}")
    if len(settings) == len(BY_NAME):
        parts.append("Settings: `--config FILE`, and all there are.")
    elif settings:
        parts.append(f"Settings: {', '.join(['`--config FILE`', *(f'`{one.opts[0]}`' for one in settings)])}.")
    formatter = context.make_formatter()
    command.format_epilog(context, formatter)
    if formatter.getvalue().strip():
        parts.append(f"```text\n{formatter.getvalue().strip()}\n```")
    return "\n\n".join(parts) + "\n"


def _shown(option: click.Option) -> str:
    """Its flags, and what they take."""
    flags = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return flags
    if isinstance(option.type, click.Choice):
        return f"{flags} {'/'.join(option.type.choices)}"
    return f"{flags} {option.metavar or 'NUMBER'}"


def _meaning(option: click.Option) -> str:
    notes = []
    if isinstance(option.type, click.IntRange | click.FloatRange):
        most = f" to {option.type.max}" if option.type.max is not None else " and more"
        notes.append(f"{option.type.min}{most}")
    if option.show_default:
        notes.append(f"default: {option.default}")
    if option.required:
        notes.append("required")
    if option.multiple:
        notes.append("may be given several times")
    text = (option.help or "").replace("|", "\\|")
    return f"{text} ({'; '.join(notes)})" if notes else text


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python3 -m deploy.reference", description=__doc__).parse_args()
    TARGET.write_text(page())
