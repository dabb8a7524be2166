"""No package that is installed, and no script that is served, is known to be vulnerable."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import httpx
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


def audited() -> dict[str, list[str]]:
    """By pip-audit: what is known against each package. Raises LookupError where it reaches no advisory service."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    try:
        ended = subprocess.run([*command, "--skip-editable"], capture_output=True, text=True, check=False, timeout=300)
    except subprocess.TimeoutExpired:
        raise LookupError("pip-audit reaches no advisory service within 300 s") from None
    if "No module named pip_audit" in ended.stderr:
        pytest.fail("pip-audit is not installed: pip install -e '.[test]'")
    try:
        found = json.loads(ended.stdout)["dependencies"]
    except (ValueError, KeyError):
        if _AWAY.search(ended.stderr):
            raise LookupError("pip-audit reaches no advisory service") from None
        raise AssertionError(ended.stderr) from None
    if not any("vulns" in one for one in found):
        raise LookupError("pip-audit's advisory service knows no package")
    return {f"{one['name']} {one['version']}": [vuln["id"] for vuln in one.get("vulns", ())] for one in found}


def listed() -> dict[str, list[str]]:
    """By the index's page of each package, which tells of its newest version: what is known against those installed.

    Not as much as pip-audit tells: of a package that is not the newest nothing is known.
    """
    installed = {each.name: each.version for each in importlib.metadata.distributions()}
    with httpx.Client(timeout=10.0, follow_redirects=True) as http, ThreadPoolExecutor(4) as pool:
        pages = dict(zip(installed, pool.map(lambda name: page(http, name), installed), strict=True))
    return {
        f"{name} {version}": [each["id"] for each in found["vulnerabilities"]]
        for name, version in installed.items()
        if (found := pages[name]) and found["info"]["version"] == version
    }


def page(http: httpx.Client, name: str) -> dict[str, Any]:
    """A package's page of the index (docs.pypi.org/api/json), empty where there is none."""
    try:
        answer = http.get(f"https://pypi.org/pypi/{name}/json")
        return dict(answer.json()) if answer.status_code == HTTPStatus.OK else {}
    except (httpx.HTTPError, ValueError):
        return {}


def test_no_installed_package_is_known_to_be_vulnerable() -> None:
    """By pip-audit, or where it cannot tell by what the index tells of the newest versions."""
    try:
        known = audited()
    except LookupError as error:
        known = listed()
        if not known:
            pytest.skip(f"{error}, nor does the index: whether packages are vulnerable is not known")
    assert {name: found for name, found in known.items() if found} == {}
