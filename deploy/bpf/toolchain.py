"""The compiler and bpftool, taken out of Debian's packages and kept: nothing is installed."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.bpf.buckets import buckets_header
from deploy.bpf.suites import apt_of, own_suite
from deploy.lab.commands import LabError, Runner
from deploy.lab.guest.packages import Package, missing_packages, unpack

CLANG = "clang-19"
# Before 7.5 bpftool ignored .struct_ops.link, so that a scheduler went with its loader.
FROM_BACKPORTS = ("bpftool", "libbpf-dev")

SOURCES = Path(__file__).parents[2] / "manager/bpf"

_CANDIDATE = re.compile(r"^\s*Candidate: (\S+)$", re.MULTILINE)
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/llvm-19/lib")
_FLAGS = ("-g", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-target", "bpf", "-mcpu=v3", "-D__TARGET_ARCH_x86")


@dataclass(frozen=True, slots=True)
class Program:
    """What is compiled: a folder's ``NAME.bpf.c``, with headers that are made for it, by their names."""

    folder: Path
    name: str
    headers: Callable[[], Mapping[str, str]] = dict

    @property
    def shipped(self) -> Path:
        """The object beside its source."""
        return self.folder / f"{self.name}.bpf.o"


PROGRAMS = (
    Program(SOURCES, "equipoise_bvt"),
    Program(SOURCES / "tap", "equipoise_tap", lambda: {"buckets.h": buckets_header()}),
    Program(SOURCES / "threads", "equipoise_threads"),
)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Unpacked packages below ``root``."""

    root: Path

    @property
    def bpftool(self) -> Path:
        return self.root / "usr/sbin/bpftool"

    def build(self, program: Program, into: Path, run: Runner) -> None:
        """Compile a program into the file ``into``: the same bytes whenever and wherever. Raises LabError."""
        libraries = {"LD_LIBRARY_PATH": ":".join(str(self.root / each) for each in _LIBRARIES)}
        clang = self.root / "usr/lib/llvm-19/bin/clang"
        # In the name that the kernel shows, so that builds can be distinguished.
        sources = sorted(program.folder.glob("*.bpf.[ch]"))
        digest = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()
        with tempfile.TemporaryDirectory() as scratch:
            for name, text in program.headers().items():
                (Path(scratch) / name).write_text(text)
            compiled = Path(scratch) / "compiled.o"
            command = [
                *(
                    str(clang),
                    *_FLAGS,
                    f'-DBUILD="{digest[:8]}"',
                    "-fdebug-compilation-dir=.",
                    f"-ffile-prefix-map={self.root}=.",
                    f"-ffile-prefix-map={scratch}=.",
                ),
                *(f"-I{scratch}", f"-I{self.root / 'usr/include'}", "-I/usr/include/x86_64-linux-gnu"),
                *("-c", f"{program.name}.bpf.c", "-o", str(compiled)),
            ]
            run(command, cwd=program.folder, env=libraries)
            # Links one file: what debuggers want, which is most of it, is left out.
            run([str(self.bpftool), "gen", "object", str(into), str(compiled)])


def fetch_toolchain(cache: Path, run: Runner) -> Toolchain:
    """Download the tools unless the directory ``cache`` has them. Raises LabError."""
    wanted = f"{CLANG} {FROM_BACKPORTS} {Path(__file__).read_text()}"
    kept = cache / f"bpf-tools-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
    if not kept.is_dir():
        codename, _ = own_suite(run)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            apt = apt_of((codename, f"{codename}-backports"), FROM_BACKPORTS, Path(scratch) / "apt", run)
            alone = [_candidate(name, apt) for name in FROM_BACKPORTS]
            root = Path(scratch) / "root"
            unpack([*alone, *_compiler(apt)], root, apt)
            root.rename(kept)
    return Toolchain(kept)


def _compiler(apt: Runner) -> list[Package]:
    """What this machine lacks of the compiler, or all of it that is not in every Debian."""
    missing = missing_packages((CLANG,), apt)
    names = {CLANG, "libclang-cpp19", "libllvm19", "libclang-common-19-dev"}
    there = [_candidate(name, apt) for name in sorted(names - {each.name for each in missing})]
    return [*missing, *there]


def _candidate(name: str, apt: Runner) -> Package:
    found = _CANDIDATE.search(apt(["apt-cache", "policy", name]))
    if found is None or found[1] == "(none)":
        raise LabError(f"Debian has no {name} for this machine's release")
    return Package(name, found[1])
