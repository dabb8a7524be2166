"""Topologies of machines, as trees of the files that ``manager.host.topology_reader`` reads; origins are in README.md.

A fixture is a text file with a line for each file or link:

    sys/devices/system/cpu/cpu[0,2]/{topology/core_cpus_list,cache/index[0-1]/shared_cpu_list}: 0,2
    proc/irq/[40-43]/smp_affinity_list (0444): 0-3
    sys/class/net/eth0/device -> ../../../0000:00:03.0

``[…]`` holds numbers in the kernel's list format and ``{…}`` alternatives, so that a line may stand for many files with
one content; the mode is 0644 unless one is given. Lines that begin with # are comments.
"""

from __future__ import annotations

import functools
import itertools
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from manager.host.registry import HostPaths
from manager.host.topology_reader import discover
from manager.model.cpus import parse_cpus
from manager.model.topology import Topology

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(file.stem for file in FOLDER.glob("*.txt")))

_LINE = re.compile(r"^(?P<path>\S+?)(?: \((?P<mode>0[0-7]{3})\))?(?::(?: (?P<text>.*))?| -> (?P<target>\S+))$")
_BRACES = re.compile(r"\{([^}]*)\}")
_NUMBERS = re.compile(r"\[([^]]*)\]")


def unpack(name: str, root: Path) -> HostPaths:
    """Make a machine's files below ``root``, which need not exist."""
    unpack_text((FOLDER / f"{name}.txt").read_text(), root)
    return HostPaths(root)


def topology(name: str, root: Path) -> Topology:
    """What is discovered of a machine that is unpacked below ``root``."""
    return discover(unpack(name, root))


@functools.cache
def load(name: str) -> Topology:
    """The same, once, for tests that need no files."""
    with tempfile.TemporaryDirectory() as folder:
        return topology(name, Path(folder))


def unpack_text(text: str, root: Path) -> None:
    """Make the files of a fixture's text below ``root``. Raises ValueError naming a malformed line."""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"neither PATH: CONTENT nor PATH -> TARGET: {line!r}")
        for path in expand(match["path"]):
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if match["target"]:
                file.symlink_to(match["target"])
            else:
                file.write_text((match["text"] or "") + "\n")
                if match["mode"]:
                    file.chmod(int(match["mode"], 8))


def expand(pattern: str) -> Iterator[str]:
    """The paths that a pattern stands for."""
    for path in _combine([part.split(",") if inside else [part] for part, inside in _parts(_BRACES, pattern)]):
        yield from _combine([_numbers(part) if inside else [part] for part, inside in _parts(_NUMBERS, path)])


def _parts(brackets: re.Pattern[str], pattern: str) -> Iterator[tuple[str, bool]]:
    """Pieces of a pattern, and whether they were inside brackets."""
    return ((part, bool(index % 2)) for index, part in enumerate(brackets.split(pattern)))


def _numbers(text: str) -> list[str]:
    return [str(number) for number in sorted(parse_cpus(text))]


def _combine(choices: list[list[str]]) -> Iterator[str]:
    return map("".join, itertools.product(*choices))
