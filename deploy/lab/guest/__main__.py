"""Command line of the guest builder."""

from __future__ import annotations

from pathlib import Path

import click

from deploy.lab.commands import LabError
from deploy.lab.guest.builder import DEFAULT_BASE, build


@click.command()
@click.option(
    "--base",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_BASE,
    show_default=True,
    help="Directory for the guest and for what was downloaded to make it.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but the directory of the guest.")
def main(base: Path, quiet: bool) -> None:
    """Build the lab's guest (kernel and initramfs) if it is missing or out of date, and print its directory."""
    try:
        guest = build(base, (lambda _line: None) if quiet else (lambda line: click.echo(line, err=True)))
    except LabError as error:
        raise click.ClickException(str(error)) from error
    click.echo(guest.directory)


if __name__ == "__main__":
    main()
