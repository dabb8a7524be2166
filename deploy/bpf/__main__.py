"""Build the scheduler, or look whether the shipped one is what its source says."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from deploy.bpf.toolchain import PROGRAM, SOURCES, fetch_toolchain
from deploy.lab.commands import LabError, run
from deploy.lab.guest.builder import DEFAULT_BASE, only_builder


def main() -> int:
    parser = argparse.ArgumentParser(prog="deploy/bpf/build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="build aside and compare; status 1 when they differ")
    parser.add_argument("--base", type=Path, default=DEFAULT_BASE, help="below which tools are kept (%(default)s)")
    options = parser.parse_args()
    shipped = SOURCES / f"{PROGRAM}.bpf.o"
    try:
        cache = options.base / "cache"
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        with only_builder(options.base):
            toolchain = fetch_toolchain(cache, run)
        if not options.check:
            toolchain.build(shipped, run)
            return 0
        with tempfile.TemporaryDirectory() as scratch:
            built = Path(scratch) / shipped.name
            toolchain.build(built, run)
            same = shipped.is_file() and shipped.read_bytes() == built.read_bytes()
    except LabError as error:
        print(f"deploy/bpf/build: {error}", file=sys.stderr)
        return 2
    if not same:
        print(f"{shipped.name} is not what its source says: run deploy/bpf/build", file=sys.stderr)
    return int(not same)


sys.exit(main())
