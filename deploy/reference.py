"""Write the references of commands and settings from the code, docs/reference/cli.md and knobs.md.

`python3 -m deploy.reference`; a test compares them, so that the pages are renewed with each option or knob.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from manager.cli import main
from manager.model.knobs import KNOBS
from manager.settings import BY_NAME

FOLDER = Path(__file__).parents[1] / "docs/reference"
_INTRODUCTION = """# Commands

Made from the commands by `python3 -m deploy.reference`; `equipoise COMMAND --help` says the same.

Options that are named as *settings* stand for settings of the same names ([configuration.md](configuration.md)), and
win over the environment and the file that `--config FILE` names. How commands end, and what to do then:
[errors.md](errors.md).
"""


_KNOBS = """# Settings of hosts and VMs

What Equipoise sets. Made from the table `manager/model/knobs.py` by `python3 -m deploy.reference`.

**Knob** is the name in the API, in metrics and in `equipoise decisions --knob`; **of** says what has one, and what its
`index` counts there. **Allowed by** is what the agent's settings `allow` and `deny` call it
([configuration.md](configuration.md)).

"""
_WRITTEN = """
## How each is read, written and restored

Every write is read back. Changes that let a VM have more are written before those that take something away, and a value
that another tool changed is left alone until `equipoise adopt`. **Check** is the finding of `equipoise doctor` that
says whether it works on a host ([doctor.md](doctor.md)); `-`: each write is the test.

"""


def knobs_page() -> str:
    """The page of knobs."""
    held = (
        (f"**{spec.label}**: {spec.description}", f"`{knob}`", spec.scope, spec.value.shape, f"`{spec.control}`")
        for knob, spec in KNOBS.items()
    )
    written = (
        (f"`{knob}`", spec.interface, spec.document, f"`{spec.probe}`" if spec.probe else "-", spec.order, spec.undo)
        for knob, spec in KNOBS.items()
    )
    return (
        _KNOBS
        + _table(("setting", "knob", "of", "value", "allowed by"), held)
        + _WRITTEN
        + _table(("knob", "kernel interface", "described in", "check", "written", "restored"), written)
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def commands_page() -> str:
    """The page of commands."""
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


PAGES: Mapping[str, Callable[[], str]] = {"cli.md": commands_page, "knobs.md": knobs_page}

if __name__ == "__main__":
    argparse.ArgumentParser(prog="python3 -m deploy.reference", description=__doc__).parse_args()
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
