"""The worked example of docs/concepts/policies.md, installed as a package of somebody else's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.package.conftest import TOP, run

LISTING = re.compile(r"`(?P<name>[\w.]+)`:\n\n```\w+\n(?P<text>.*?)```", re.DOTALL)

SCRIPT = """
from policies.installed import load_policies
from manager.control.resolve import validate
from tests_snapshot import snapshot

found = load_policies(on_error=print)["doubling"]
seen = snapshot()
decision = found.policy.decide(seen, None)
assert validate(decision, seen) is None
print(found.provided_by, [(goal.vm, goal.weight, goal.reason) for goal in decision.weights])
"""

SNAPSHOT = """
from manager.model.decision import ApplicationView, Snapshot, VmView
from manager.model.host import CPU_SHARES_V1, Capabilities
from manager.model.registration import Application, HostSpec, Mode, Sla, VmClass, VmSpec
from manager.model.window import SlaState

def snapshot():
    cpus = frozenset(range(2))
    capabilities = Capabilities("6.1", "9.0.0", 1, CPU_SHARES_V1, cpus, cpus, True)
    vms = (
        VmView(VmSpec("batch", VmClass.BATCH), 1, 0.5, 0.5, Mode.ENFORCE, 1024),
        VmView(VmSpec("slow", VmClass.CRITICAL), 1, 0.2, 0.1, Mode.ENFORCE, 1024, "shop", "web"),
    )
    views = (ApplicationView(Application("shop", (), Sla(500)), None, SlaState.VIOLATED),)
    return Snapshot(1000.0, 5.0, HostSpec("h1"), capabilities, vms, views)
"""


def test_the_example_of_the_documentation_is_found_and_decides(installed: Path, tmp_path: Path) -> None:
    listings = {
        match["name"]: match["text"] for match in LISTING.finditer((TOP / "docs/concepts/policies.md").read_text())
    }
    assert set(listings) == {"pyproject.toml", "equipoise_doubling.py"}
    code = [line for line in listings["equipoise_doubling.py"].splitlines() if line]
    assert len(code) <= 30, "the documentation promises a short example"
    package = tmp_path / "package"
    package.mkdir()
    for name, text in listings.items():
        (package / name).write_text(text)
    theirs = tmp_path / "theirs"  # beside what is installed: other tests use that, too
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", theirs, package, cwd=tmp_path)
    (tmp_path / "tests_snapshot.py").write_text(SNAPSHOT)
    (tmp_path / "script.py").write_text(SCRIPT)
    printed = run(installed / "bin/python", tmp_path / "script.py", cwd=tmp_path, PYTHONPATH=theirs)
    assert printed.strip() == (
        "equipoise-doubling [('batch', 2, 'doubling: SLA no_data'), ('slow', 2048, 'doubling: SLA violated')]"
    )
