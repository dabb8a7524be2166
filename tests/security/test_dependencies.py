"""No package that is installed, and no script that is served, is known to be vulnerable."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from deploy import vendor

# The least version that may be served, and why that one. A package that is vendored needs a row: look its advisories up
# (https://github.com/advisories?query=ecosystem%3Anpm) whenever one is added, and whenever a version is taken.
LEAST = {
    "htmx.org": ((2, 0, 0), "no advisory is known; its security policy keeps 2.x"),
    "idiomorph": ((0, 3, 0), "no advisory is known"),
    "uplot": ((1, 6, 31), "CVE-2024-21489, prototype pollution by uPlot.assign, is mended there"),
}
_AWAY = re.compile(
    r"ConnectionError|Max retries|NameResolution|ProxyError|ServiceError|timed? ?out|HTTPError", re.IGNORECASE
)


def version(text: str) -> tuple[int, ...]:
    """A version for comparing."""
    return tuple(int(part) for part in text.split("."))


def test_no_vendored_script_is_known_to_be_vulnerable() -> None:
    assert {one.name for one in vendor.PACKAGES} == LEAST.keys()
    for package in vendor.PACKAGES:
        least, why = LEAST[package.name]
        assert version(package.version) >= least, f"{package.name}: {why}"


def test_no_installed_package_is_known_to_be_vulnerable() -> None:
    """By pip-audit, which asks an advisory service: without a network that cannot be told."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    try:
        ended = subprocess.run([*command, "--skip-editable"], capture_output=True, text=True, check=False, timeout=300)
    except subprocess.TimeoutExpired:
        pytest.skip(
            "pip-audit cannot reach an advisory service within 300 s: whether packages are vulnerable is not known"
        )
    if "No module named pip_audit" in ended.stderr:
        pytest.fail("pip-audit is not installed: pip install -e '.[test]'")
    try:
        found = json.loads(ended.stdout)["dependencies"]
    except (ValueError, KeyError):
        if _AWAY.search(ended.stderr):
            pytest.skip("pip-audit reaches no advisory service: whether packages are vulnerable is not known")
        raise AssertionError(ended.stderr) from None
    if not any("vulns" in one for one in found):
        pytest.skip("pip-audit's advisory service knows no package: whether they are vulnerable is not known")
    bad = [
        f"{one['name']} {one['version']}: {[vuln['id'] for vuln in one['vulns']]}" for one in found if one.get("vulns")
    ]
    assert bad == []
