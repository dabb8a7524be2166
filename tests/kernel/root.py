"""The files of a guest that runs Python: the interpreter, packages of this environment, the project, and the tests.

They make an initramfs of two archives, which the kernel unpacks one after the other: what changes with the environment
only, which is kept, and the project, which is packed for each run.
"""

from __future__ import annotations

import ast
import compileall
import functools
import hashlib
import importlib.util
import json
import marshal
import os
import platform
import py_compile
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from _pytest.assertion.rewrite import PYC_TAIL, rewrite_asserts
from packaging.requirements import Requirement

from deploy.lab.commands import LabError, Runner
from deploy.lab.guest.initramfs import archive, libraries

TOP = Path(__file__).parents[2]
PACKAGES = "packages"  # where in the guest installed packages are
PROJECT = "equipoise"  # and the project
JOB = "job.json"  # what the guest's first process is to do
SOURCES = ("manager", "policies", "tests/kernel", "tests/host", "tests/__init__.py", "setup.cfg")
UNUSED_S = 86_400.0
REWRITTEN = ("tests/kernel/inside", "tests/kernel/guest", "tests/host/conftest.py")  # whose asserts pytest explains

_LEFT_OUT = frozenset(
    {"__pycache__", "test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "tkinter", "turtledemo"}
    | {"ensurepip", "pydoc_data", "config-3"}  # the last: config-3.11-x86_64-linux-gnu, with a static library
)


def interpreter() -> Path:
    """The Python that runs this, at the place that it has in the guest too: it finds its library by that."""
    return Path(sys.executable).resolve()


def environment_archive(cache: Path, wanted: Sequence[str], run: Runner) -> Path:
    """The archive with the interpreter and the ``wanted`` packages with all that they require, kept in ``cache``.

    Archives that no guest had for a day are removed. Raises LabError when a package is not installed here.
    """
    packages = _closure(wanted)
    parts = [str(interpreter()), platform.python_version(), Path(__file__).read_text()]
    parts += [f"{each.name}={each.version}" for each in packages]
    kept = cache / f"python-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"
    if not kept.is_file():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            tree = Path(scratch) / "tree"
            _copy_interpreter(tree)
            for package in packages:
                _copy_package(package, tree / PACKAGES)
            _compile(tree)
            content = read_tree(tree)
            for program in (interpreter(), *_extension_modules(tree)):
                content |= {target: source.read_bytes() for target, source in libraries(program, run).items()}
            new = Path(scratch) / kept.name
            new.write_bytes(archive(content))
            new.rename(kept)
        for other in cache.glob("python-*"):
            if time.time() - other.stat().st_mtime > UNUSED_S:
                other.unlink()
    os.utime(kept)
    return kept


def project_archive(job: dict[str, object]) -> bytes:
    """The archive with the project, the guest's first process, and its job."""
    return _project() + archive({JOB: json.dumps(job).encode()})


@functools.cache
def _project() -> bytes:
    """What all guests of a run have alike: packed once, as it is now."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        for source in SOURCES:
            _copy(TOP / source, tree / PROJECT / source)
        _compile(tree)
        _rewrite(tree / PROJECT)
        content = read_tree(tree)
    init = (Path(__file__).parent / "guest/init.py").read_bytes()
    content["init"] = b"#!%s -ES\n%s" % (str(interpreter()).encode(), init)
    return archive(content)


def read_tree(tree: Path) -> dict[str, bytes]:
    """All files below a directory by their paths from there."""
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def _closure(wanted: Sequence[str]) -> tuple[metadata.Distribution, ...]:
    """The installed packages of these names and all that they require, in order of names."""
    found: dict[str, metadata.Distribution] = {}
    names = list(wanted)
    while names:
        name = names.pop().lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            raise LabError(f"the package {name} is not installed, so that no guest can have it") from error
        requirements = [Requirement(text) for text in found[name].requires or ()]
        names += [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    return tuple(found[name] for name in sorted(found))


def _copy_interpreter(tree: Path) -> None:
    for place in dict.fromkeys((sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))):
        # Asked of the interpreter below an environment, these are its own library's and the environment's.
        if (Path(place) / "os.py").is_file():
            _copy(Path(place), tree / place.lstrip("/"))
    _copy(interpreter(), tree / str(interpreter()).lstrip("/"))


def _copy_package(package: metadata.Distribution, into: Path) -> None:
    for file in package.files or ():
        if ".." not in file.parts and not _LEFT_OUT.intersection(file.parts):
            _copy(Path(str(package.locate_file(file))), into / str(file))


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=_left_out, dirs_exist_ok=True)
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _left_out(_folder: str, names: list[str]) -> Iterable[str]:
    return [name for name in names if name.partition(".")[0] in _LEFT_OUT or name.endswith((".a", ".exe"))]


def _compile(tree: Path) -> None:
    """Compile all modules: an emulated guest takes ten times as long, and would do it at each boot.

    The archive has no times of change, so the results are marked as not to be checked against their sources.
    """
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(tree, quiet=2, stripdir=tree, prependdir="/", invalidation_mode=unchecked, workers=2)


def _rewrite(project: Path) -> None:
    """Keep what pytest makes of modules with its asserts where it looks for it: a guest takes a second for each.

    It finds nothing, and makes it itself, if another release of it keeps that elsewhere or in another form.
    """
    for place in (project / each for each in REWRITTEN):
        for module in place.rglob("*.py") if place.is_dir() else (place,):
            source, name = module.read_bytes(), str("/" / module.relative_to(project.parent))
            tree = ast.parse(source, filename=name)
            rewrite_asserts(tree, source, name)
            code = compile(tree, name, "exec", dont_inherit=True)
            # By the hash of its source, which is checked (PEP 552).
            header = importlib.util.MAGIC_NUMBER + b"\3\0\0\0" + importlib.util.source_hash(source)
            kept = module.parent / "__pycache__" / (module.stem + PYC_TAIL)
            kept.write_bytes(header + marshal.dumps(code))


def _extension_modules(tree: Path) -> Iterator[Path]:
    """Those of the packages and the library, but none whose libraries only a desktop has."""
    return (path for path in sorted(tree.rglob("*.so")) if not path.name.startswith("_tkinter."))
