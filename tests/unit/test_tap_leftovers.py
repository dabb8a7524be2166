"""What a process that was killed while it loaded the program for taps has left."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from manager.host.bpf_objects import remove_leftovers


def test_only_pins_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, loading, other = (tmp_path / f"equipoise_tap_{whose}" for whose in (gone.pid, os.getpid(), "mine"))
    for folder in (left, loading, other):
        (folder / "maps").mkdir(parents=True)
        (folder / "to_guest").touch()
        (folder / "maps" / "tap_times").touch()
    remove_leftovers(tmp_path, "equipoise_tap_")
    assert not left.exists()
    assert (loading / "maps" / "tap_times").exists()
    assert (other / "to_guest").exists()
    remove_leftovers(tmp_path / "not mounted", "equipoise_tap_")
