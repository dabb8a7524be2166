"""Build the BPF programs, or look whether the shipped ones are what their sources say."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from deploy.bpf.toolchain import PROGRAMS, fetch_toolchain
from deploy.lab.commands import LabError, run
from deploy.lab.guest.builder import DEFAULT_BASE, only_builder


def main() -> int:
    parser = argparse.ArgumentParser(prog="deploy/bpf/build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="build aside and compare; status 1 when they differ")
    parser.add_argument("--base", type=Path, default=DEFAULT_BASE, help="below which tools are kept (%(default)s)")
    options = parser.parse_args()
    try:
        cache = options.base / "cache"
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        with only_builder(options.base):
            toolchain = fetch_toolchain(cache, run)
        if not options.check:
            for program in PROGRAMS:
                toolchain.build(program, program.shipped, run)
            return 0
        different: list[str] = []
        with tempfile.TemporaryDirectory() as scratch:
            for program in PROGRAMS:
                built = Path(scratch) / program.shipped.name
                toolchain.build(program, built, run)
                if not program.shipped.is_file() or program.shipped.read_bytes() != built.read_bytes():
                    different.append(program.shipped.name)
    except LabError as error:
        print(f"deploy/bpf/build: {error}", file=sys.stderr)
        return 2
    for name in different:
        print(f"{name} is not what its source says: run deploy/bpf/build", file=sys.stderr)
    return int(bool(different))


sys.exit(main())
