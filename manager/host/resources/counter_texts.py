"""Kernel files that count, parsed. What is malformed is not counted: a line of it, or all that it says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from manager.model.resource_use import ALL_DISKS, DeviceCounters, DiskCounters

SECTOR_BYTES = 512
"""Of /proc/diskstats, whatever the disk's own are."""
_FAULTS = b"pgmajfault"
_REFAULTS = (b"workingset_refault_anon", b"workingset_refault_file", b"workingset_refault")  # the last: before 5.9
_DISKSTATS_FIELDS = 14


def pressure_us(text: bytes) -> int | None:
    """Of a file of PSI, the microseconds in which some thread waited."""
    for line in text.splitlines():
        if line.startswith(b"some "):
            return _number(line.rpartition(b"total=")[2])
    return None


def faults(text: bytes) -> tuple[int | None, int | None]:
    """Major faults and refaulted pages in a memory.stat; v1's of a group with all below it."""
    lines = b"\n" + text  # looked up, not split: there are some sixty, of each VM
    refaults = [number for name in _REFAULTS if (number := _of_group(lines, name)) is not None]
    return _of_group(lines, _FAULTS), sum(refaults) if refaults else None


def total_memory(text: bytes) -> int | None:
    """Bytes of memory of the host, from /proc/meminfo: proc_meminfo(5)."""
    for line in text.splitlines():
        name, _, amount = line.partition(b":")
        if name == b"MemTotal":
            kibibytes = _number(amount.removesuffix(b"kB"))
            return None if kibibytes is None else kibibytes * 1024
    return None


def _of_group(lines: bytes, name: bytes) -> int | None:
    for prefix in (b"\ntotal_", b"\n"):  # v1 has both, the latter of the group alone
        if (words := prefix + name + b" ") in lines:
            return _after(lines, words)
    return None


def _after(lines: bytes, words: bytes) -> int | None:
    """The number between these words and the end of the line; None: there is none."""
    at = lines.find(words)
    if at < 0:
        return None
    begin = at + len(words)
    end = lines.find(b"\n", begin)
    return _number(lines[begin:] if end < 0 else lines[begin:end])


def process_memory(text: bytes, page_bytes: int) -> tuple[int | None, int | None]:
    """Major faults and resident bytes of a process, from /proc/PID/stat: proc_pid_stat(5), fields 12 and 24."""
    fields = text.rpartition(b")")[2].split()
    try:
        return int(fields[9]), int(fields[21]) * page_bytes
    except (ValueError, IndexError):
        return None, None


def process_io(text: bytes) -> dict[str, DiskCounters] | None:
    """Bytes that a process read from disks and wrote, of all disks together: proc_pid_io(5)."""
    lines = b"\n" + text
    read, written = _after(lines, b"\nread_bytes: "), _after(lines, b"\nwrite_bytes: ")
    return None if read is None or written is None else {ALL_DISKS: DiskCounters(read, written, None)}


def io_stat(text: bytes, names: Mapping[bytes, str]) -> dict[str, DiskCounters]:
    """Of a v2 group, by the names of devices (which are by ``MAJOR:MINOR``)."""
    disks: dict[str, DiskCounters] = {}
    for line in text.splitlines():
        device, _, pairs = line.partition(b" ")
        fields = dict(pair.partition(b"=")[::2] for pair in pairs.split())
        with contextlib.suppress(KeyError, ValueError):
            read, written, reads, writes = (int(fields[name]) for name in (b"rbytes", b"wbytes", b"rios", b"wios"))
            disks[_name(device, names)] = DiskCounters(read, written, reads + writes)
    return disks


def blkio(service_bytes: bytes, serviced: bytes, names: Mapping[bytes, str]) -> dict[str, DiskCounters]:
    """Of a v1 group, likewise; empty where its policy does not count."""
    read_written, requests = _by_operation(service_bytes), _by_operation(serviced)
    return {
        _name(device, names): DiskCounters(
            numbers.get(b"Read", 0), numbers.get(b"Write", 0), _both(requests.get(device, {}))
        )
        for device, numbers in read_written.items()
    }


def _both(numbers: Mapping[bytes, int]) -> int:
    return numbers.get(b"Read", 0) + numbers.get(b"Write", 0)


def _by_operation(text: bytes) -> dict[bytes, dict[bytes, int]]:
    """Numbers of each operation by device: lines such as ``254:0 Read 4096``."""
    found: dict[bytes, dict[bytes, int]] = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            device, operation, number = line.split()
            found.setdefault(device, {})[operation] = int(number)
    return found


def disk_lines(text: bytes) -> Iterator[tuple[bytes, str, DeviceCounters]]:
    """``MAJOR:MINOR``, name and counters of each disk and partition, from /proc/diskstats."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < _DISKSTATS_FIELDS:
            continue
        try:
            numbers = [int(field) for field in fields[3:_DISKSTATS_FIELDS]]
        except ValueError:
            continue
        reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms, _, busy_ms, _ = numbers
        total_bytes = (read_sectors + written_sectors) * SECTOR_BYTES
        counters = DeviceCounters(total_bytes, reads + writes, read_ms + write_ms, busy_ms)
        yield fields[0] + b":" + fields[1], fields[2].decode(errors="replace"), counters


def _name(device: bytes, names: Mapping[bytes, str]) -> str:
    return names.get(device) or device.decode(errors="replace")


def _number(text: bytes) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
