"""Writes by others are counted, whoever holds the folder, and none is missed when the kernel drops events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from manager.host.files import LIBC
from manager.host.write_watch import UNWATCHED, WriteWatch

QUEUED = Path("/proc/sys/fs/inotify/max_queued_events")


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two, with files."""
    made = [tmp_path / "one", tmp_path / "two"]
    for folder in made:
        folder.mkdir()
        for name in ("weight", "quota"):
            (folder / name).write_text("1")
    return made


@pytest.fixture
def watch() -> Iterator[WriteWatch]:
    with closing(WriteWatch()) as opened:
        yield opened


def now(watch: WriteWatch, number: int) -> int | None:
    """How many writes were seen, this moment's among them."""
    watch.look()
    return watch.writes(number)


def test_a_write_counts_in_its_own_folder_only(watch: WriteWatch, folders: list[Path]) -> None:
    one, two = map(watch.add, folders)
    assert now(watch, one) is None, "nothing shows yet that this kernel reports any"
    (folders[0] / "quota").write_text("2")
    first = now(watch, one)
    assert first
    assert now(watch, two) == 0
    (folders[0] / "quota").read_text()
    assert now(watch, one) == first, "reading is no writing"
    (folders[0] / "quota").write_text("3")
    assert (now(watch, one) or 0) > first
    assert now(watch, two) == 0


def test_a_folder_with_two_holders_is_watched_until_both_have_let_go(watch: WriteWatch, folders: list[Path]) -> None:
    first, second = watch.add(folders[0]), watch.add(folders[0])
    watch.remove(first)
    (folders[0] / "weight").write_text("2")
    assert now(watch, second)
    watch.remove(second)
    again = watch.add(folders[0])
    (folders[0] / "weight").write_text("3")
    assert now(watch, again)


def test_what_is_written_counts_from_the_next_look_on(watch: WriteWatch, folders: list[Path]) -> None:
    one, two = map(watch.add, folders)
    (folders[0] / "weight").write_text("2")
    watch.look()
    first = watch.writes(one)
    for folder in folders:
        (folder / "weight").write_text("3")
    assert (watch.writes(one), watch.writes(two)) == (first, 0)
    watch.look()
    assert (watch.writes(one) or 0) > (first or 0)
    assert watch.writes(two)


def test_a_folder_that_was_removed_meanwhile_is_let_go_of(watch: WriteWatch, folders: list[Path]) -> None:
    one = watch.add(folders[0])
    for file in folders[0].iterdir():
        file.unlink()
    folders[0].rmdir()
    now(watch, one)
    watch.remove(one)


def test_lost_events_count_as_a_write_in_each_folder(watch: WriteWatch, folders: list[Path]) -> None:
    one, two = map(watch.add, folders)
    descriptors = [os.open(folders[0] / name, os.O_WRONLY) for name in ("weight", "quota")]
    for number in range(int(QUEUED.read_text()) + 1):  # by turns: equal events become one
        os.write(descriptors[number % 2], b"1")
    assert now(watch, two)
    assert now(watch, one)
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("call", ["inotify_init1", "inotify_add_watch"])
def test_where_there_is_no_inotify_nothing_is_watched(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(LIBC, call, lambda *_: -1)
    watch = WriteWatch()
    number = watch.add(folders[0])
    assert number == UNWATCHED
    assert now(watch, number) is None
    watch.close()
