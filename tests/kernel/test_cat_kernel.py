"""A kernel is changed where the probe for cache allocation is, once, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.lab.commands import LabError, run
from tests.kernel.cat_kernel import NOP, divide_cache, unpack_image

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
