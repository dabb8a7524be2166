"""Benchmarks and demonstrations of the project as processes of their own, which write JSON."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.reproduction.result_folder import TOP
from manager.errors import EquipoiseError

_CLEANS_UP_S = 120.0
_LAST_LINES = 5


class BenchmarkError(EquipoiseError):
    """A benchmark failed; the text has the end of what it said."""


def json_of_module(module: str, arguments: Sequence[str], to_stdout: bool = False) -> dict[str, Any]:
    """What ``python -m module`` writes as JSON: to the file that ``--json`` names, or with ``to_stdout`` to its output.

    An interruption is passed on, and waited for until it has cleaned up. Raises BenchmarkError.
    """
    with tempfile.TemporaryDirectory() as folder:
        file, said = Path(folder) / "result.json", Path(folder) / "said"
        json_options = ["--json"] if to_stdout else ["--json", str(file)]
        command = [sys.executable, "-m", module, *arguments, *json_options]
        with said.open("w") as errors, (file if to_stdout else said).open("w") as output:
            code = _wait(subprocess.Popen(command, cwd=TOP, stdout=output, stderr=errors, start_new_session=True))
        end = " | ".join(said.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:])
        try:
            body = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise BenchmarkError(f"python -m {module} gave no result (status {code}): {end or error}") from error
        if not isinstance(body, dict):
            raise BenchmarkError(f"python -m {module} gave something else than a JSON object")
        return body


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_CLEANS_UP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def lacks_programs(*programs: str, root: bool = False) -> str:
    """What is missing of these; empty: nothing."""
    if root and os.geteuid() != 0:
        return "needs root"
    missing = [program for program in programs if not shutil.which(program)]
    return f"needs {', '.join(missing)}: install it, or run deploy/lab/setup.sh" if missing else ""
