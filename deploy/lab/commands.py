"""Running other programs, and the errors the lab raises on purpose."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from manager.errors import EquipoiseError

ERROR_LINES = 8


class LabError(EquipoiseError):
    """A step of the lab failed; the text says which, why, and where possible what to do."""


class CommandFailed(LabError):
    """A program ended with another status than 0 or not in time. ``cause`` is what it said last, or that."""

    def __init__(self, argv: Sequence[str], cause: str) -> None:
        super().__init__(f"{' '.join(argv)}: {cause}")
        self.cause = cause


class Runner(Protocol):
    """How a program is run. ``run`` is the real one; tests bring their own."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = ...,
        cwd: Path | None = ...,
        env: Mapping[str, str] | None = ...,
    ) -> str: ...


def last_lines(text: str, count: int = ERROR_LINES) -> str:
    """The last non-empty lines of a program's output, for an error message."""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-count:])


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 600.0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program in the C locale and return what it wrote to standard output.

    ``env`` is added to the environment. Raises CommandFailed when it ends with another status than 0 or takes longer
    than ``timeout_s``, LabError when there is no such program.
    """
    try:
        done = subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
        )
    except FileNotFoundError as error:
        raise LabError(f"{argv[0]} is not installed; deploy/lab/setup.sh installs what the lab needs") from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(argv, f"no end after {timeout_s:g} s") from error
    if done.returncode != 0:
        raise CommandFailed(argv, f"status {done.returncode}\n{last_lines(done.stderr or done.stdout)}")
    return done.stdout
