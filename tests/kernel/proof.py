"""Boots guests with a real resctrl, runs the host layer's tests in them, prints what was run and what came of it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deploy.lab.commands import LabError
from tests.kernel.machine import Run, run_tests
from tests.kernel.machines import MACHINES, RESCTRL


def results(run: Run) -> list[dict[str, Any]]:
    """Each test by its name, with its outcome, what it found, and where it failed."""
    found = []
    for nodeid, reports in run.reports.items():
        worst = next((each for each in reports if each["outcome"] != "passed"), reports[-1])
        outcome = worst["outcome"] if run.complete(nodeid) else "did not end"
        properties = {name: value for each in reports for name, value in each["user_properties"]}
        phase = {} if outcome == "passed" else {"phase": worst["when"], "reason": reason(worst)}
        found.append({"test": nodeid.partition("::")[2], "outcome": outcome, **properties, **phase})
    return found


def reason(report: dict[str, Any]) -> str:
    """The line that says why."""
    told = report["longrepr"]
    return told["reprcrash"]["message"] if isinstance(told, dict) and told.get("reprcrash") else str(told)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/kernel/run resctrl", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = {name: pool.submit(run_tests, MACHINES[name], [f"tests/kernel/inside/{name}"]) for name in RESCTRL}
    for name, future in runs.items():
        try:
            run = future.result()
        except LabError as error:
            print(f"tests/kernel/run: {error}", file=sys.stderr)
            return 2
        tests = results(run)
        found[name] = {
            "passed": sum(each["outcome"] == "passed" for each in tests),
            "failed": sum(each["outcome"] != "passed" for each in tests),
            "trouble": run.trouble,
            "tests": tests,
        }
        if not options.json:
            print(*(f"{name} {each['outcome']}: {each['test']}" for each in tests), sep="\n", flush=True)
        if run.trouble or not tests:
            print(f"tests/kernel/run: {name}: {run.trouble or 'no test ran'}\n{run.console_end}", file=sys.stderr)
    if options.json:
        print(json.dumps(found, indent=1))
    return 0 if all(each["tests"] and not each["failed"] and not each["trouble"] for each in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
