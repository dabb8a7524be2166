"""The scheduler that is shipped is the one whose source is beside it."""

from __future__ import annotations

import struct
from pathlib import Path

from deploy.bpf.toolchain import fetch_toolchain
from deploy.lab.commands import run
from deploy.lab.guest.builder import DEFAULT_BASE, only_builder
from manager import bpf


def test_building_it_again_gives_the_same_bytes(tmp_path: Path) -> None:
    """If not: deploy/bpf/build."""
    cache = DEFAULT_BASE / "cache"
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    with only_builder(DEFAULT_BASE):
        toolchain = fetch_toolchain(cache, run)
    built = tmp_path / "built.o"
    toolchain.build(built, run)
    assert built.read_bytes() == bpf.OBJECT.read_bytes()


def test_the_maps_are_as_python_takes_them() -> None:
    """Names of the maps are symbols of the object; a renamed one would otherwise be noticed on a host first."""
    content = bpf.OBJECT.read_bytes()
    assert content[:5] == b"\x7fELF\x02"
    assert struct.unpack_from("<H", content, 18)[0] == 247  # EM_BPF
    for name in (bpf.WARPS, bpf.STATS, bpf.CPUS, bpf.NAME):
        assert f"\0{name}\0".encode() in content
