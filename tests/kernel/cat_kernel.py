"""A kernel whose resctrl mounts in an emulated machine, which has no cache that can be divided.

Linux takes a Haswell server (family 6, model 63) for one with cache allocation when a mask written to MSR 0xc90 reads
back (cache_alloc_hsw_probe, arch/x86/kernel/cpu/resctrl/core.c). The emulator has no such register: the branch taken
then is made void in the image. All else is the kernel as it is; what it writes to the register goes nowhere.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from deploy.lab.commands import LabError, Runner
from deploy.lab.guest.kernel import Kernel

Fetch = Callable[[Path, Runner, Callable[[str], None]], Kernel]

# The first bytes of what is packed, and the command that unpacks it; {} are the files.
COMPRESSIONS = {
    b"\x28\xb5\x2f\xfd": ["zstd", "--decompress", "--quiet", "{}", "-o", "{}"],
    b"\x02\x21\x4c\x18": ["lz4", "--decompress", "--quiet", "{}", "{}"],
}
NOP = b"\x90"
_NEAR_BYTES = 96
_HASWELL_CLOSIDS = 4
# cmp $0xfffff,%eax or %rax; jne. 0xc90 was loaded shortly before.
_PROBE = re.compile(rb"\x48?\x3d\xff\xff\x0f\x00(\x0f\x85....|\x75.)", re.DOTALL)
_REGISTER = struct.pack("<I", 0xC90)
# movl $4,num_closid
_CLOSIDS = re.compile(rb"\xc7\x05....(\x04\0\0\0)", re.DOTALL)


def with_cache_allocation(fetch: Fetch, closids: int = _HASWELL_CLOSIDS) -> Fetch:
    """Gets the same kernel with the resctrl of a Haswell server for so many CLOSIDs. It raises LabError."""
    return _changed(fetch, f"closids {closids}", lambda kernel, _scratch, _run: divide_cache(kernel, closids))


def _changed(fetch: Fetch, what: str, change: Callable[[bytes, Path, Runner], bytes]) -> Fetch:
    """Made once and kept beside the kernel."""

    def fetch_changed(cache: Path, run: Runner, say: Callable[[str], None]) -> Kernel:
        kernel = fetch(cache, run, say)
        parts = f"{kernel.image.parent.name} {what} {Path(__file__).read_text()}"
        kept = kernel.image.with_name(f"cat-{hashlib.sha256(parts.encode()).hexdigest()[:16]}")
        if not kept.is_file():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                scratch = Path(folder)
                new = scratch / kept.name
                new.write_bytes(change(unpack_image(kernel.image.read_bytes(), scratch, run), scratch, run))
                new.rename(kept)
        return dataclasses.replace(kernel, image=kept)

    return fetch_changed


def unpack_image(image: bytes, scratch: Path, run: Runner) -> bytes:
    """The ELF file in a bzImage (Documentation/arch/x86/boot.rst). Raises LabError when it is none that is known."""
    if image[0x202:0x206] != b"HdrS":
        raise LabError("the kernel's image is no bzImage")
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = ((image[0x1F1] or 4) + 1) * 512 + offset
    # The build appends the size of what was packed.
    payload, size = image[start : start + length - 4], image[start + length - 4 : start + length]
    command = COMPRESSIONS.get(payload[:4])
    if command is None:
        raise LabError(f"the kernel's image is packed in a way that is not known: {payload[:6].hex()}")
    packed, plain = scratch / "packed", scratch / "plain"
    packed.write_bytes(payload)
    files = iter((str(packed), str(plain)))
    run([next(files) if each == "{}" else each for each in command])
    found = plain.read_bytes()
    if found[:4] != b"\x7fELF" or len(found) != struct.unpack("<I", size)[0]:
        raise LabError("the kernel's image holds no ELF file of the size that it tells")
    return found


def divide_cache(kernel: bytes, closids: int) -> bytes:
    """The kernel whose probe always succeeds. Raises LabError unless there is exactly one place for each change."""
    found = [one for one in _PROBE.finditer(kernel) if _REGISTER in kernel[max(one.start() - 64, 0) : one.start()]]
    if len(found) != 1:
        raise LabError(f"the probe for cache allocation is {len(found)} times in the kernel's image, not once")
    start, end = found[0].span(1)
    changed = bytearray(kernel)
    changed[start:end] = NOP * (end - start)
    if closids != _HASWELL_CLOSIDS:
        places = list(_CLOSIDS.finditer(kernel, end, end + _NEAR_BYTES))
        if len(places) != 1:
            raise LabError(f"the number of CLOSIDs is {len(places)} times in the kernel's image, not once")
        struct.pack_into("<I", changed, places[0].start(1), closids)
    return bytes(changed)
