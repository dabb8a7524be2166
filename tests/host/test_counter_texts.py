"""What is read from kernel files that count, those that are malformed included."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.host.resources.counter_texts import (
    blkio,
    disk_lines,
    faults,
    io_stat,
    pressure_us,
    process_io,
    process_memory,
    total_memory,
)
from manager.model.resource_use import ALL_DISKS, DeviceCounters, DiskCounters

PSI = b"some avg10=28.33 avg60=28.88 avg300=19.54 total=100086327\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
V2 = b"anon 1\nworkingset_refault_anon 5\nworkingset_refault_file 7\npgfault 900\npgmajfault 3\n"
V1 = b"cache 1\nworkingset_refault_file 1\npgmajfault 1\ntotal_workingset_refault_file 7\ntotal_pgmajfault 3\n"
STAT = b"101 (a) b) R 1 101 101 0 -1 4194560 500 0 42 0 10 5 0 0 20 0 4 0 9000 1000000 256 184467 1 1 0 0\n"
NAMES = {b"254:0": "vda"}
DISKSTATS = (
    b" 254       0 vda 100 1 2000 30 50 2 1000 20 0 40 60 1 2 3 4 5 6\n"
    b" 254       1 vda1 1 0 8 1 0 0 0 0 0 1 1\n"
    b"   8       0 sda 1 2\n"
    b"   8      16 sdb 1 2 x 4 5 6 7 8 9 10 11\n"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PSI, 100086327),
        (b"full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n", None),
        (b"some avg10=0.00\n", None),
        (b"some avg10=0.00 avg60=0.00 avg300=0.00 total=x\n", None),
        (b"", None),
    ],
)
def test_pressure(text: bytes, found: int | None) -> None:
    assert pressure_us(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (V2, (3, 12)),
        (V1, (3, 7)),
        (b"workingset_refault 9\npgmajfault 3\n", (3, 9)),
        (b"workingset_refault_file_x 9\nmypgmajfault 3\n", (None, None)),
        (b"pgmajfault 3", (3, None)),
        (b"pgmajfault many\nworkingset_refault_anon \nworkingset_refault_file 4\n", (None, 4)),
        (b"", (None, None)),
    ],
)
def test_faults(text: bytes, found: tuple[int | None, int | None]) -> None:
    assert faults(text) == found


@pytest.mark.parametrize("text", [STAT[:40], b"", STAT.replace(b"42", b"?")])
def test_memory_of_a_process(text: bytes) -> None:
    assert process_memory(STAT, 4096) == (42, 256 * 4096)
    assert process_memory(text, 4096) == (None, None)


def test_io_of_a_process() -> None:
    text = b"rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 512\ncancelled_write_bytes: 0\n"
    assert process_io(text) == {ALL_DISKS: DiskCounters(4096, 512, None)}
    assert process_io(text.replace(b"4096", b"-")) is None
    assert process_io(b"") is None


def test_io_of_a_group() -> None:
    text = b"254:0 rbytes=4096 wbytes=512 rios=3 wios=4 dbytes=0 dios=0\n8:0 rbytes=1 wbytes=2 rios=1 wios=1\n"
    cut = text + b"7:0 \n9:0 rbytes=1\n11:0 rbytes=x wbytes=2 rios=1 wios=1\n\n"
    assert io_stat(cut, NAMES) == {"vda": DiskCounters(4096, 512, 7), "8:0": DiskCounters(1, 2, 2)}
    assert io_stat(b"", NAMES) == {}


def test_io_of_a_group_of_v1() -> None:
    served = b"254:0 Read 4096\n254:0 Write 512\n254:0 Sync 4608\n254:0 Total 4608\nTotal 4608\n"
    counted = b"254:0 Read 3\n254:0 Write 4\n254:0 Total 7\nTotal 7\n254:0 Write many\n"
    assert blkio(served, counted, NAMES) == {"vda": DiskCounters(4096, 512, 7)}
    assert blkio(b"Total 0\n", b"Total 0\n", NAMES) == {}, "its policy counts nothing"


def test_disks_of_the_host() -> None:
    assert list(disk_lines(DISKSTATS)) == [
        (b"254:0", "vda", DeviceCounters(3000 * 512, 150, 50, 40)),
        (b"254:1", "vda1", DeviceCounters(8 * 512, 1, 1, 1)),
    ]


@given(st.binary(max_size=300))
def test_nothing_that_a_file_may_hold_is_an_error(text: bytes) -> None:
    pressure_us(text), faults(text), process_memory(text, 4096), process_io(text)
    io_stat(text, NAMES), blkio(text, text, NAMES), list(disk_lines(text))


@given(st.integers(0, 400), st.sampled_from([PSI, V2, STAT, DISKSTATS]))
def test_nor_is_one_that_is_cut_short(length: int, text: bytes) -> None:
    cut = text[:length]
    pressure_us(cut), faults(cut), process_memory(cut, 4096), list(disk_lines(cut))


@pytest.mark.parametrize(
    ("text", "total"),
    [
        (b"MemTotal:        3944580 kB\nMemFree:          100 kB\n", 3944580 * 1024),
        (b"MemFree:          100 kB\n", None),
        (b"MemTotal:  some kB\n", None),
        (b"", None),
    ],
)
def test_total_memory(text: bytes, total: int | None) -> None:
    assert total_memory(text) == total
