"""Emulated Debian machines by hand.

    python -m tests.hosts up FOLDER [--release SUITE] [--number N] [--fleet PORT]
    python -m tests.hosts run FOLDER SCRIPT
    python -m tests.hosts save|load FOLDER TAG
    python -m tests.hosts reset|down FOLDER

`up` builds the image of this checkout, boots it and leaves it running. One process at a time has a machine's shell.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.hosts.emulated import Host, start
from tests.hosts.images import RELEASES, build


def main() -> None:
    """Do it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hosts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("up", "run", "save", "load", "reset", "down"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("word", nargs="?", default="", help="the script, or the tag")
    parser.add_argument("--release", choices=sorted(RELEASES), default="bookworm")
    parser.add_argument("--number", type=int, default=1)
    parser.add_argument("--fleet", type=int, default=0, metavar="PORT", help="its network, by port")
    parser.add_argument("--timeout-s", type=float, default=300.0)
    options = parser.parse_args()
    if options.action == "up":
        image = build(RELEASES[options.release], say=print)
        start(image, options.folder, number=options.number, fleet_port=options.fleet).ready().leave()
        return
    host = Host(options.folder)
    match options.action:
        case "run":
            output = host.output(options.word or sys.stdin.read(), timeout_s=options.timeout_s)
            sys.stdout.write(output.stdout)
            sys.stderr.write(output.stderr)
            sys.exit(output.status)
        case "save":
            host.save(options.word)
        case "load":
            host.load(options.word)
        case "reset":
            host.reset()
        case _:
            host.close()
            return
    host.leave()


if __name__ == "__main__":
    main()
