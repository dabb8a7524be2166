"""The guest's kernel: image and the few modules it needs, taken from Debian packages and kept for the next build."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.lab.commands import LabError, Runner
from deploy.lab.guest.packages import Package, kernel_packages, unpack

# Network card and disk, the bus they sit on, and what is on the disk; what they need in turn comes from modules.dep.
WANTED_MODULES = ("virtio_pci", "virtio_net", "virtio_blk", "ext4")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel image, and its modules (plain .ko files) in the order in which they are to be loaded."""

    name: str
    image: Path
    modules: tuple[Path, ...]


def load_order(modules_dep: str, modules_builtin: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """Paths of the wanted modules and all they depend on, each after what it needs.

    ``modules_dep`` and ``modules_builtin`` are the texts of those files, see modules.dep(5). A module built into the
    kernel needs no file and is left out. Raises LabError when the kernel has no such module.
    """
    needs: dict[str, tuple[str, list[str]]] = {}
    for line in modules_dep.splitlines():
        path, _, dependencies = line.partition(":")
        needs[_module_name(path)] = (path, [_module_name(each) for each in dependencies.split()])
    builtin = {_module_name(path) for path in modules_builtin.split()}
    order: dict[str, None] = {}

    def add(name: str) -> None:
        if name in needs:
            path, dependencies = needs[name]
            for each in dependencies:
                add(each)
            order.setdefault(path)
        elif name not in builtin:
            raise LabError(f"the guest's kernel has no module {name}")

    for name in wanted:
        add(_module_name(name))
    return tuple(order)


def _module_name(path: str) -> str:
    """``kernel/drivers/net/virtio-net.ko.xz`` is the module ``virtio_net``."""
    return path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")


def fetch_kernel(
    cache: Path, run: Runner, say: Callable[[str], None], wanted: Sequence[str] = WANTED_MODULES
) -> Kernel:
    """The kernel apt offers now with the ``wanted`` modules, downloaded unless the directory ``cache`` has it.

    Raises LabError.
    """
    packages = kernel_packages(run)
    name = packages[0].name.partition("-")[2].partition("-")[2]
    kept = cache / "-".join(("kernel", _digest(packages), *wanted))
    if not kept.is_dir():
        say(f"downloading {', '.join(map(str, packages))}")
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            root = Path(scratch) / "root"
            unpack(packages, root, run)
            new = Path(scratch) / "kernel"
            _select(root, new, run, wanted)
            new.rename(kept)
    order = (kept / "order").read_text().split()
    return Kernel(name, kept / "vmlinuz", tuple(kept / "modules" / each for each in order))


def _digest(packages: Sequence[Package]) -> str:
    return hashlib.sha256(" ".join(map(str, packages)).encode()).hexdigest()[:16]


def _select(root: Path, into: Path, run: Runner, wanted: Sequence[str]) -> None:
    """Copy image and wanted modules out of unpacked kernel packages, the latter uncompressed."""
    # Debian 12 has /lib/modules, its successors /usr/lib/modules, and depmod knows but one of them.
    for here, there in (("lib", "usr/lib"), ("usr/lib", "lib")):
        if (root / there).is_dir() and not (root / here).exists():
            (root / here).parent.mkdir(exist_ok=True)
            (root / here).symlink_to(os.path.relpath(root / there, (root / here).parent))
    versions = sorted((root / "lib/modules").iterdir())
    if len(versions) != 1:
        raise LabError(f"the kernel packages hold {len(versions)} sets of modules instead of one")
    modules = versions[0]
    run(["depmod", "-b", str(root), modules.name])
    order = load_order((modules / "modules.dep").read_text(), (modules / "modules.builtin").read_text(), wanted)
    (into / "modules").mkdir(parents=True)
    # Since 7.3 the image lies with the modules.
    image = next(each for each in (root / "boot" / f"vmlinuz-{modules.name}", modules / "vmlinuz") if each.is_file())
    shutil.copyfile(image, into / "vmlinuz")
    names = [f"{_module_name(path)}.ko" for path in order]
    for path, name in zip(order, names, strict=True):
        _uncompress(modules / path, into / "modules" / name, run)
    (into / "order").write_text("\n".join(names))


def _uncompress(source: Path, target: Path, run: Runner) -> None:
    match source.suffix:
        case ".ko":
            shutil.copyfile(source, target)
        case ".xz":
            target.write_bytes(lzma.decompress(source.read_bytes()))
        case ".zst":
            run(["zstd", "--decompress", "--quiet", "-o", str(target), str(source)])
        case other:
            raise LabError(f"{source.name}: modules compressed as {other} are not supported")
