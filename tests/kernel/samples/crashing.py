"""Tests of all outcomes, the last but one of which takes the kernel down. For the tests of the harness."""

from __future__ import annotations

import time
from pathlib import Path

import pytest


def test_passes() -> None:
    assert Path("/proc/1/cmdline").read_bytes().endswith(b"/init\0")


def test_fails() -> None:
    print("said before")
    assert [1, 2] == [1, 3]


@pytest.mark.skip(reason="for a reason")
def test_is_skipped() -> None:
    raise AssertionError


def test_panics() -> None:
    Path("/proc/sysrq-trigger").write_text("c")
    time.sleep(60)


def test_comes_after() -> None:
    pass
