"""pytest plugin of the guest: each report at once over a serial port, so that also a kernel's crash leaves the earlier.

Lines of JSON: ``start`` with a test's node id, ``report`` as pytest serialises it, ``collect`` with what could not be
collected.
"""

from __future__ import annotations

import json
import os
import tty

import pytest

PORT = "EQUIPOISE_REPORTS"
"""Name of the environment variable with the port's path."""


class Relay:
    """Writes the lines."""

    def __init__(self, config: pytest.Config, path: str) -> None:
        self._config = config
        self._port = os.open(path, os.O_WRONLY | os.O_NOCTTY)
        tty.setraw(self._port)

    def _send(self, **line: object) -> None:
        rest = json.dumps(line, default=str).encode() + b"\n"
        while rest:
            rest = rest[os.write(self._port, rest) :]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._send(start=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send(report=self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._send(collect=f"{report.nodeid}: {report.longreprtext}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Relay(config, os.environ[PORT]))
