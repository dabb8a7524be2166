"""A kernel is changed where the probe for cache allocation or CPUID is, once, or not at all."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from deploy.lab.commands import LabError, run
from tests.kernel.cat_kernel import NOP, answer_cpuid, divide_cache, end_of_text, unpack_image

LOAD = b"\xbb\x90\x0c\0\0"
COMPARE = b"\x48\x3d\xff\xff\x0f\0"
BRANCH = b"\x0f\x85\x40\xfc\xff\xff"
CLOSIDS = b"\xc7\x05\xb6\x04\x77\xff"
PROBE = LOAD + bytes(20) + COMPARE + BRANCH + bytes(9) + CLOSIDS + b"\x04\0\0\0"


def test_only_the_branch_and_the_number_change() -> None:
    kernel = bytes(100) + PROBE + bytes(100)
    assert divide_cache(kernel, 4) == kernel.replace(BRANCH, NOP * 6)
    assert divide_cache(kernel, 16) == divide_cache(kernel, 4).replace(CLOSIDS + b"\x04", CLOSIDS + b"\x10")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (bytes(300), "is 0 times"),
        (PROBE + bytes(100) + PROBE, "is 2 times"),
        (PROBE.replace(LOAD, bytes(5)), "is 0 times"),
        (PROBE.replace(CLOSIDS, bytes(6)), "CLOSIDs is 0 times"),
        (PROBE + CLOSIDS + b"\x04\0\0\0", "CLOSIDs is 2 times"),
    ],
    ids=["none", "two", "of another register", "no number", "two numbers"],
)
def test_what_is_not_there_once_is_not_changed(kernel: bytes, words: str) -> None:
    with pytest.raises(LabError, match=words):
        divide_cache(kernel, 16)


@pytest.mark.parametrize(
    ("magic", "payload", "words"),
    [
        (b"none", b"", "no bzImage"),
        (b"HdrS", b"BZh9", "packed in a way that is not known"),
        (b"HdrS", b"\x28\xb5\x2f\xfd", "zstd"),
    ],
)
def test_images_that_cannot_be_unpacked(tmp_path: Path, magic: bytes, payload: bytes, words: str) -> None:
    image = bytearray(0x250 + 5 * 512)
    image[0x202:0x206] = magic
    image[0x248:0x250] = (0).to_bytes(4, "little") + (64).to_bytes(4, "little")
    image[5 * 512 : 5 * 512 + len(payload)] = payload
    with pytest.raises(LabError, match=words):
        unpack_image(bytes(image), tmp_path, run)


CPUID = b"\x8b\x0a\x0f\xa2\x41\x89\x00\x89\x1e"
"""native_cpuid, from where it loads ECX on."""
TEXT_BYTES = 300
HEADER_BYTES, SECTION_BYTES = 64, 64


def elf(code: bytes, behind: bytes = bytes(4096)) -> bytes:
    """An ELF file whose .text is the code, which begins after the header."""
    names = b"\0.text\0"
    start = HEADER_BYTES + len(code)
    strings = start + len(behind)
    table = strings + len(names)
    sections = struct.pack("<IIQQQQ", 1, 1, 6, 0, HEADER_BYTES, len(code)).ljust(SECTION_BYTES, b"\0")
    sections += struct.pack("<IIQQQQ", 0, 3, 0, 0, strings, len(names)).ljust(SECTION_BYTES, b"\0")
    header = bytearray(HEADER_BYTES)
    struct.pack_into("<Q", header, 0x28, table)
    struct.pack_into("<HHH", header, 0x3A, SECTION_BYTES, 2, 1)
    return bytes(header) + code + behind + names + sections


def test_cpuid_goes_by_what_is_added_behind_the_code_and_back(tmp_path: Path) -> None:
    kernel = elf(CPUID.rjust(TEXT_BYTES, b"\x90"))
    changed = answer_cpuid(kernel, tmp_path, run)
    end = end_of_text(kernel)
    assert end == HEADER_BYTES + TEXT_BYTES
    at = kernel.index(CPUID) + 2
    assert changed[:at] == kernel[:at]
    assert changed[at : at + 1] == b"\xe9"
    assert at + 5 + struct.unpack_from("<i", changed, at + 1)[0] == end
    assert changed[at + 5 : end] == kernel[at + 5 : end]
    added = changed[end:].index(b"\x41\x89\x00\xe9") + end
    assert added + 8 + struct.unpack_from("<i", changed, added + 4)[0] == at + 5
    assert changed[added + 8 :] == kernel[added + 8 :]


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (elf(bytes(TEXT_BYTES)), "is 0 times"),
        (elf(CPUID * 2), "is 2 times"),
        (elf(CPUID, b"\x90" * 4096), "no room"),
        (elf(CPUID.rjust(4096 - HEADER_BYTES - 8, b"\x90")), "no room"),
        (elf(CPUID).replace(b".text", b".data"), "no section .text"),
    ],
    ids=["none", "two", "something is there", "too little", "no code"],
)
def test_where_cpuid_is_not_changed(kernel: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=words):
        answer_cpuid(kernel, tmp_path, run)
