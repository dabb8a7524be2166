"""Makes a fixture of a machine: python -m tests.host.topologies.reduce [ROOT] [INTERFACE...] >NAME.txt

ROOT is ``/`` or a folder with a copy of sys/ and proc/. Only what ``manager.host.topology_reader`` reads is written; of
network interfaces those that are named.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from manager.model.cpus import format_cpus

_CPU = "sys/devices/system/cpu"
_NUMBER = re.compile(r"(?<=/cpu)\d+(?=/)|(?<=irq/)\d+(?=/)|(?<=msi_irqs/)\d+$")
_INDEX = re.compile(r"(?<=cache/index)\d+")


def reduce(root: Path, interfaces: Sequence[str] = ()) -> str:
    """The lines of a fixture for the machine whose sysfs and procfs are below ``root``."""
    together: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    lines: list[str] = []
    for path, text in _files(root, interfaces):
        number = _NUMBER.search(path)
        if number:
            mode = _mode(root / path) if path.startswith("proc/irq/") else ""
            together[path[: number.start()] + "[]" + path[number.end() :], mode, text].add(int(number[0]))
        else:
            lines.append(f"{path}:{text and ' '}{text}")
    alike: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for (pattern, mode, text), numbers in together.items():
        before, _, after = pattern.partition("[]")
        alike[f"{before}[{format_cpus(numbers)}]", after[:1], mode, text].append(after[1:])
    for (before, slash, mode, text), rest in alike.items():
        files = _fold(rest)
        after = files[0] if len(files) == 1 else "{" + ",".join(files) + "}"
        lines.append(f"{_plain(before)}{slash}{after}{mode}:{text and ' '}{text}")
    for name in interfaces:
        link = root / "sys/class/net" / name
        links = [link, Path(os.path.realpath(link)) / "device"]
        lines += [f"{_relative(one, root)} -> {one.readlink()}" for one in links if one.is_symlink()]
    return "\n".join(sorted(lines, key=_natural)) + "\n"


def _files(root: Path, interfaces: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Path and content of each file."""
    wanted = [f"{_CPU}/online", f"{_CPU}/isolated", "sys/devices/cpu_*/cpus", "sys/devices/system/node/node*/cpulist"]
    cpu = f"{_CPU}/cpu[0-9]*"
    wanted += [f"{cpu}/{file}" for file in ("topology/physical_package_id", "cpu_capacity", "cpufreq/cpuinfo_max_freq")]
    wanted += [f"{cpu}/cache/index*/{file}" for file in ("level", "type")]
    found = [path for pattern in wanted for path in root.glob(pattern)]
    for folder in root.glob(cpu):
        lists = [folder / "topology" / name for name in ("core_cpus_list", "thread_siblings_list")]
        found += [path for path in lists if path.is_file()][:1]
        found += [
            index / "shared_cpu_list"
            for index in folder.glob("cache/index*")
            if (index / "level").read_text().strip() != "1" and (index / "shared_cpu_list").is_file()
        ]
    for name in interfaces:
        device = Path(os.path.realpath(root / "sys/class/net" / name / "device"))
        device = device.parent if device.name.startswith("virtio") else device
        vectors = sorted(device.glob("msi_irqs/*"), key=lambda path: int(path.name))
        yield from ((_relative(path, root), "msix") for path in vectors)
        numbers = [vector.name for vector in vectors]
        if not numbers and (device / "irq").is_file():
            found.append(device / "irq")
            numbers = [(device / "irq").read_text().strip()]
        for number in numbers:
            found += [root / f"proc/irq/{number}/{name}_affinity_list" for name in ("smp", "effective")]
            found.append(root / f"sys/kernel/irq/{number}/actions")
    for path in found:
        if path.is_file():
            yield _relative(path, root), path.read_text().strip("\0\n ")


def _relative(path: Path, root: Path) -> str:
    """``path``, which may go through ``root`` or what that is a link to, below ``root``."""
    return str(path.relative_to(root.resolve() if path.is_relative_to(root.resolve()) else root))


def _mode(path: Path) -> str:
    writable = path.name == "smp_affinity_list" and path.stat().st_mode & 0o222
    return "" if writable or path.name != "smp_affinity_list" else " (0444)"


def _fold(files: list[str]) -> list[str]:
    """cache/index0/level and cache/index1/level as cache/index[0-1]/level."""
    indices: dict[str, set[int]] = defaultdict(set)
    for file in files:
        found = _INDEX.search(file)
        indices[_INDEX.sub("[]", file)].update([int(found[0])] if found else [])
    return [_plain(file.replace("[]", f"[{format_cpus(numbers)}]")) for file, numbers in indices.items()]


def _plain(path: str) -> str:
    """Without brackets about a single number."""
    return re.sub(r"\[(\d+)\]", r"\1", path)


def _natural(line: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", line)]


if __name__ == "__main__":
    sys.stdout.write(reduce(Path(sys.argv[1] if len(sys.argv) > 1 else "/"), sys.argv[2:]))
