"""The doctor as the agent asks it: another process, so that neither ticks nor the agent's memory know of it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import fields
from typing import Any

from manager.cli.options import environment
from manager.errors import HostError
from manager.model.finding import Finding, FindingStatus
from manager.settings import Settings

_LONGEST_S = 120
_ACTS = "cpu-weight-acts"


class Doctor:
    """An ``Examiner`` that runs `equipoise doctor`, see docs/reference/doctor.md.

    Whether weights act is tried at the first look only: that takes CPU time from VMs for a moment. Later looks tell
    what was found then.
    """

    def __init__(self, settings: Settings) -> None:
        """With the same settings as the agent's."""
        self._variables = environment(settings)
        self._acts: Finding | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def look(self) -> tuple[Finding, ...]:
        """All findings. Raises HostError."""
        options = ["--gentle"] if self._acts else []
        found = self._run([sys.executable, "-m", "manager.cli", "doctor", "--json", *options])
        acts = self._acts or next((one for one in found if one.id == _ACTS), None)
        self._acts = acts
        return tuple(acts if acts and one.id == _ACTS else one for one in found)

    def close(self) -> None:
        """End a look that is under way: the doctor removes its scratch places on SIGTERM."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.terminate()

    def _run(self, command: list[str]) -> tuple[Finding, ...]:
        process = self._start(command)
        try:
            output, errors = process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise HostError(f"the doctor took longer than {_LONGEST_S} s") from error
        try:
            return tuple(_finding(body) for body in json.loads(output)["findings"])
        except (ValueError, KeyError, TypeError) as error:
            said = errors.strip().splitlines()[-1:] or [str(error)]
            raise HostError(f"the doctor did not answer: {said[0]}") from error

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        with self._lock:
            if self._closed:
                raise HostError("the doctor was told to end")
            try:
                # A group of its own: the terminal's Ctrl-C is for the agent, which then ends the doctor.
                self._process = subprocess.Popen(
                    command,
                    env=self._variables,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    process_group=0,
                )
            except OSError as error:
                raise HostError(f"the doctor cannot be started: {error}") from error
            return self._process


def _finding(one: dict[str, Any]) -> Finding:
    values = {field.name: one[field.name] for field in fields(Finding)}
    return Finding(**values | {"status": FindingStatus(one["status"])})
