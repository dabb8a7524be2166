"""A kernel whose resctrl mounts in an emulated machine, which has no cache that can be divided.

Linux takes a Haswell server (family 6, model 63) for one with cache allocation when a mask written to MSR 0xc90 reads
back (cache_alloc_hsw_probe, arch/x86/kernel/cpu/resctrl/core.c). The emulator has no such register: the branch taken
then is made void in the image. Of newer processors CPUID tells, which the emulator does not either: the kernel's
function for that is made to add it. All else is the kernel as it is; what it writes to registers goes nowhere.
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
_PAGE_BYTES = 4096
_HASWELL_CLOSIDS = 4
# cmp $0xfffff,%eax or %rax; jne. 0xc90 was loaded shortly before.
_PROBE = re.compile(rb"\x48?\x3d\xff\xff\x0f\x00(\x0f\x85....|\x75.)", re.DOTALL)
_REGISTER = struct.pack("<I", 0xC90)
# movl $4,num_closid
_CLOSIDS = re.compile(rb"\xc7\x05....(\x04\0\0\0)", re.DOTALL)
# native_cpuid: mov (%rdx),%ecx; cpuid; mov %eax,(%r8); mov %ebx,(%rsi)
_CPUID = re.compile(rb"\x8b\x0a(\x0f\xa2(\x41\x89\x00))\x89\x1e")
# What it does instead of cpuid. Leaf 7 says that there are leaves 0xf and 0x10: occupancy and memory traffic of 24
# RMIDs; an L3 of 20 ways, of which other hardware uses the two highest too, with CDP and 16 CLOSIDs; memory bandwidth
# from 10 % on, with 8 CLOSIDs (Intel SDM 3B, 18.18 and 18.19).
_ANSWER = """
        cmp $0x10, %eax
        je 2f
        cmp $0xf, %eax
        je 2f
        cmp $7, %eax
        jne 1f
        test %ecx, %ecx
        jne 1f
        cpuid
        or $0x9000, %ebx
        jmp 9f
1:      cpuid
        jmp 9f
2:      mov %ecx, %edx
        shl $8, %edx
        or %eax, %edx
        xor %eax, %eax
        xor %ebx, %ebx
        xor %ecx, %ecx
        cmp $0x00f, %edx
        je 3f
        cmp $0x10f, %edx
        je 4f
        cmp $0x010, %edx
        je 5f
        cmp $0x110, %edx
        je 6f
        cmp $0x310, %edx
        je 7f
        xor %edx, %edx
        jmp 9f
3:      mov $23, %ebx
        mov $2, %edx
        jmp 9f
4:      mov $0x10000, %ebx
        mov $23, %ecx
        mov $7, %edx
        jmp 9f
5:      mov $0xa, %ebx
        xor %edx, %edx
        jmp 9f
6:      mov $19, %eax
        mov $0xc0000, %ebx
        mov $4, %ecx
        mov $15, %edx
        jmp 9f
7:      mov $89, %eax
        mov $4, %ecx
        mov $7, %edx
9:
"""


def with_cache_allocation(fetch: Fetch, closids: int = _HASWELL_CLOSIDS) -> Fetch:
    """Gets the same kernel with the resctrl of a Haswell server for so many CLOSIDs. It raises LabError."""
    return _changed(fetch, f"closids {closids}", lambda kernel, _scratch, _run: divide_cache(kernel, closids))


def with_bandwidth_allocation(fetch: Fetch) -> Fetch:
    """Gets the same kernel with the resctrl of a newer processor, with CDP and MBA. It raises LabError."""
    return _changed(fetch, "bandwidth", answer_cpuid)


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


def answer_cpuid(kernel: bytes, scratch: Path, run: Runner) -> bytes:
    """The kernel whose native_cpuid adds what ``_ANSWER`` does. Raises LabError unless that is there exactly once.

    The addition is put behind the kernel's code, where the rest of the last page is executable too.
    """
    found = list(_CPUID.finditer(kernel))
    if len(found) != 1:
        raise LabError(f"native_cpuid is {len(found)} times in the kernel's image, not once")
    source, code, plain = (scratch / f"answer.{kind}" for kind in ("s", "o", "bin"))
    source.write_text(_ANSWER)
    run(["as", "--64", "-o", str(code), str(source)])
    run(["objcopy", "-O", "binary", "-j", ".text", str(code), str(plain)])
    start, after = found[0].span(1)
    end = end_of_text(kernel)
    added = plain.read_bytes() + found[0][2]
    added += b"\xe9" + struct.pack("<i", after - end - len(added) - 5)
    if len(added) > -end % _PAGE_BYTES or any(kernel[end : end + len(added)].strip(b"\0\xcc")):
        raise LabError("the kernel's image has no room behind its code")
    changed = bytearray(kernel)
    changed[start:after] = b"\xe9" + struct.pack("<i", end - after)
    changed[end : end + len(added)] = added
    return bytes(changed)


def end_of_text(kernel: bytes) -> int:
    """Where in an ELF file the section .text ends (elf(5)). Raises LabError."""
    (sections,) = struct.unpack_from("<Q", kernel, 0x28)
    size, count, names = struct.unpack_from("<HHH", kernel, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", kernel, sections + size * number) for number in range(count)]
    strings = headers[names][4]
    for name, _kind, _flags, _address, offset, length in headers:
        if kernel[strings + name : strings + name + 6] == b".text\0":
            return int(offset + length)
    raise LabError("the kernel's image has no section .text")
