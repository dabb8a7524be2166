"""The BPF programs that are shipped are those whose sources are beside them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from deploy.bpf.toolchain import PROGRAMS, Program, fetch_toolchain
from deploy.lab.commands import run
from deploy.lab.guest.builder import DEFAULT_BASE, only_builder
from manager import bpf
from manager.bpf import tap, threads


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_building_it_again_gives_the_same_bytes(tmp_path: Path, program: Program) -> None:
    """If not: deploy/bpf/build."""
    cache = DEFAULT_BASE / "cache"
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    with only_builder(DEFAULT_BASE):
        toolchain = fetch_toolchain(cache, run)
    built = tmp_path / "built.o"
    toolchain.build(program, built, run)
    assert built.read_bytes() == program.shipped.read_bytes()


@pytest.mark.parametrize(
    ("shipped", "names"),
    [
        (bpf.OBJECT, (bpf.WARPS, bpf.STATS, bpf.CPUS, bpf.NAME)),
        (tap.OBJECT, (tap.SERVICES, tap.INTERFACES, tap.TIMES, tap.LOST, tap.TO_GUEST, tap.FROM_GUEST)),
        (
            threads.OBJECT,
            (threads.WANTED, threads.PLACES, threads.TIMES, threads.FIND, threads.READ, threads.READ_WAITS),
        ),
    ],
)
def test_the_maps_are_as_python_takes_them(shipped: Path, names: tuple[str, ...]) -> None:
    """Names of the maps are symbols of the object; a renamed one would otherwise be noticed on a host first."""
    content = shipped.read_bytes()
    assert content[:5] == b"\x7fELF\x02"
    assert struct.unpack_from("<H", content, 18)[0] == 247  # EM_BPF
    for name in names:
        assert f"\0{name}\0".encode() in content
