"""Loading a BPF object by bpftool, so that what was loaded is held by this process only.

Its pins are removed as soon as they were opened: programs, maps and links vanish with the process, whatever ends it.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from manager.errors import HostError
from manager.host.registry import HostPaths
from manager.host.sched_ext import PINS

_LOAD_S = 300  # the verifier's work, beside busy VMs in an emulated host; a second elsewhere
_MOST_SAID = 400


@contextlib.contextmanager
def pinned(paths: HostPaths, kernel_object: Path, name: str, bpftool: str = "bpftool") -> Iterator[Path]:
    """Load the object and pin its programs and, in ``maps``, its maps in a folder, which is removed at the end of the
    block, with what processes that are gone left under that ``name``.

    Raises HostError.
    """
    mount, prefix = paths.root / PINS, f"{name}_"
    remove_leftovers(mount, prefix)
    folder = mount / f"{prefix}{os.getpid()}"
    command = [bpftool, "prog", "loadall", str(kernel_object), str(folder), "pinmaps", str(folder / "maps")]
    try:
        loading = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_LOAD_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{bpftool}: {error}") from error
    try:
        if loading.returncode:
            said = why_refused(loading.stderr or loading.stdout)
            raise HostError(f"the kernel did not take the program {name}: {said}")
        yield folder
    finally:
        _remove(folder)


def why_refused(said: str) -> str:
    """Why bpftool did not load an object, by what it said: the verifier's own words where it was the verifier."""
    failed = re.search(r"^libbpf: (prog '.*': BPF program load failed: .*)$", said, re.MULTILINE)
    judged = re.search(r"^(.*)\nprocessed \d+ insns", said, re.MULTILINE)
    if failed and judged:
        return f"{failed[1]}: {judged[1]}"[:_MOST_SAID]
    return " ".join(said.partition("Warning: bpftool is now running in libbpf strict mode")[0].split())[-_MOST_SAID:]


def remove_leftovers(mount: Path, prefix: str) -> None:
    """Remove what processes that are gone have pinned: one that was killed while it loaded a program.

    ``prefix``: of the folders' names, before the number of the process.
    """
    for folder in mount.glob(f"{prefix}*"):
        process = folder.name.removeprefix(prefix)
        if process.isdecimal() and not Path("/proc", process).exists():
            _remove(folder)


def _remove(folder: Path) -> None:
    for file in sorted(folder.glob("**/*"), reverse=True):
        with contextlib.suppress(OSError):
            file.rmdir() if file.is_dir() else file.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()
