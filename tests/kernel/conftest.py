"""Tests below ``inside`` are collected here and run in a guest, one boot for each folder there.

Their reports appear as if they had run here. What a folder's guest is like stands in ``machines.py``. Guests run side
by side: each keeps one of this machine's CPUs busy, and the time of those that measure any is counted in instructions.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.lab.commands import LabError
from tests.deadline import NO_TIME_LEFT, left_s
from tests.kernel.machine import Run, run_tests
from tests.kernel.machines import MACHINES, SCHED_EXT, with_image

INSIDE = Path(__file__).parent / "inside"

FOUR_CPUS = "warp_smp"

_pool = pytest.StashKey[ThreadPoolExecutor]()
_runs = pytest.StashKey[Mapping[str, Future[Run]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--four-cpus", action="store_true", help="all tests on four CPUs, not only the short ones: minutes more"
    )
    parser.addoption(
        "--kernel", type=Path, metavar="IMAGE", help="test the scheduler on this kernel with sched_ext, a vmlinuz"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes longest, unless it is asked for, and what a kernel of one's own is not for."""
    left_out = []
    if not config.getoption("--four-cpus"):
        left_out += [i for i in items if machine_name(i) == FOUR_CPUS and not i.get_closest_marker("short")]
    if config.getoption("--kernel"):
        left_out += [i for i in items if machine_name(i) not in SCHED_EXT]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def machine_name(item: pytest.Item) -> str | None:
    """The name of the machine that a test runs in, None for one that runs here."""
    return item.path.relative_to(INSIDE).parts[0] if item.path.is_relative_to(INSIDE) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Report what came of a test in its guest, which is booted for the first of them."""
    name = machine_name(item)
    if name is None:
        return None
    if _runs not in item.config.stash:
        item.config.stash[_runs] = start(item.session)
    run = item.config.stash[_runs][name].result()
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports_of(item, run):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def start(session: pytest.Session) -> Mapping[str, Future[Run]]:
    """Begin to boot the guests that have tests to run, one on each CPU."""
    image: Path | None = session.config.getoption("--kernel")
    chosen = {name: [each.nodeid for each in session.items if machine_name(each) == name] for name in MACHINES}
    pool = session.stash[_pool] = ThreadPoolExecutor(os.cpu_count())
    return {name: pool.submit(run_chosen, name, nodeids, image) for name, nodeids in chosen.items() if nodeids}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Boot no more of them when the tests were ended before."""
    if _pool in session.stash:
        session.stash[_pool].shutdown(cancel_futures=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say of which guests the kernel hung or crashed, and came up when it was booted again."""
    for name, run in config.stash.get(_runs, {}).items():
        if run.done() and not run.cancelled() and run.result().boots > 1:
            terminalreporter.write_line(
                f"{name}: its kernel hung or crashed before its first process; boots: {run.result().boots}"
            )


def run_chosen(name: str, nodeids: Sequence[str], image: Path | None) -> Run:
    """What came of them, if only why there is no guest."""
    machine = with_image(MACHINES[name], image) if image else MACHINES[name]
    if (seconds := left_s()) <= 0:
        return Run("", trouble=NO_TIME_LEFT)
    try:
        run = run_tests(dataclasses.replace(machine, timeout_s=min(machine.timeout_s, seconds)), nodeids)
        return dataclasses.replace(run, trouble=NO_TIME_LEFT) if run.trouble and left_s() <= 0 else run
    except (LabError, OSError) as error:
        return Run("", trouble=f"no guest could be made: {error}")


def reports_of(item: pytest.Item, run: Run) -> list[pytest.TestReport]:
    """A test's reports, and one more, with the end of the guest's console, when the test did not end: in time, if it
    was given that.
    """
    reports = [
        item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
        for data in run.reports.get(item.nodeid, ())
    ]
    if not run.complete(item.nodeid) and run.trouble == NO_TIME_LEFT:
        path, line, _name = item.location
        skipped = str(path), line or 0, f"Skipped: {NO_TIME_LEFT}"
        reports.append(pytest.TestReport(item.nodeid, item.location, {}, "skipped", skipped, "call"))
    elif not run.complete(item.nodeid):
        state = "began but did not end" if run.running == item.nodeid else "did not run"
        text = f"this test {state}: {run.trouble or 'the guest told nothing of it'}"
        keywords = dict.fromkeys(item.keywords, 1)
        console = [("Guest console", run.console_end)]
        reports.append(pytest.TestReport(item.nodeid, item.location, keywords, "failed", text, "call", console))
    return reports
