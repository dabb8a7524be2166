"""Files and folders that only the service can use, whatever the umask and whatever was there before."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from manager.errors import UnsafeFile

FILE_MODE, FOLDER_MODE = 0o600, 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OF_FILE_SYSTEM = frozenset({"lost+found"})


def claim_folder(path: Path, own: Collection[str], *, of_another: bool = False, files: bool = True) -> None:
    """Create a folder that only its owner can use, or close an existing one, with its ``files``, to others.

    ``own``: names that mark a readable folder as ours; one with other content is refused. ``of_another``: root also
    accepts another user's. Raises OSError; UnsafeFile for a folder whose content others may have written or can still
    exchange, saying what to do.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=FOLDER_MODE)
    if path.is_symlink() and path.lstat().st_uid not in {0, os.geteuid()}:
        raise UnsafeFile(f"{path} is a symbolic link that belongs to {_user(path.lstat().st_uid)}: name its target")
    with _opened(path, os.O_DIRECTORY) as folder:
        status = os.fstat(folder)
        names = {*os.listdir(folder)} - _OF_FILE_SYSTEM  # noqa: PTH208 - of the folder that is open
        if status.st_uid != os.geteuid() and not (of_another and os.geteuid() == 0):
            raise UnsafeFile(
                f"{path} belongs to {_user(status.st_uid)}, who could exchange what is in it: `chown` it to"
                f" {_user(os.geteuid())} if you trust its content, or name another folder"
            )
        _refuse_shared(path, status, names, own)
        if status.st_mode & _OTHERS:
            os.fchmod(folder, FOLDER_MODE)
        for name in sorted(names) if files else ():
            _claim_file(path, folder, name, {status.st_uid, os.geteuid(), 0})


def _refuse_shared(path: Path, status: os.stat_result, names: Collection[str], own: Collection[str]) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_ISVTX or (mode & _OTHERS_WRITE and names):
        raise UnsafeFile(
            f"others may write in {path} (mode {mode:04o}), so what is in it may be theirs: `chmod 0700 {path}` if you"
            " trust its content, or name another folder"
        )
    if mode & _OTHERS and names and not {*own}.intersection(names):
        raise UnsafeFile(
            f"{path} (mode {mode:04o}) holds other things, which others may read: name a folder that is used for"
            " nothing else"
        )


def _claim_file(path: Path, folder: int, name: str, owners: set[int]) -> None:
    """Close a file to others. Raises UnsafeFile for theirs."""
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if status.st_uid not in owners:
            raise UnsafeFile(
                f"{path / name} belongs to {_user(status.st_uid)}: look at it, and remove it or `chown` it"
            )
        if stat.S_ISREG(status.st_mode) and status.st_mode & _OTHERS:
            with _opened(name, 0, folder) as file:
                os.fchmod(file, FILE_MODE)


@contextmanager
def _opened(path: Path | str, flags: int, folder: int | None = None) -> Iterator[int]:
    flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if flags & os.O_DIRECTORY else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_new(path: Path) -> BinaryIO:
    """A new file, open for writing, that only its owner can read. Raises OSError, also if it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, FILE_MODE), "wb")


def make_file(path: Path, *, of_folder: bool = False) -> None:
    """Create an empty file, unless there is one: SQLite gives its log the same mode.

    ``of_folder``: root makes it for the owner of the folder, who could not open it otherwise.
    """
    with suppress(FileExistsError), open_new(path) as file:
        if of_folder and os.geteuid() == 0:
            owner = path.parent.stat()
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably. Raises OSError."""
    with reserved_file(path, 0) as write:
        write(content)


@contextmanager
def reserved_file(path: Path, most_bytes: int) -> Iterator[Callable[[bytes], None]]:
    """What replaces a file atomically and durably, called once, with at most so many bytes, for which there is room.

    For content that exists but once, and must not be lost to a full disk. Without a call nothing is replaced. Raises
    OSError.
    """
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    replaced = False
    try:
        with open_new(new) as file:

            def write(content: bytes) -> None:
                nonlocal replaced
                file.seek(0)
                file.write(content)
                file.truncate()
                _sync(file)  # else a power cut may leave an empty one
                new.replace(path)
                replaced = True

            if most_bytes:
                file.write(bytes(most_bytes))
                _sync(file)
            yield write
    finally:
        if not replaced:
            with suppress(OSError):
                new.unlink()


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def is_private(status: os.stat_result) -> bool:
    """Whether it is a regular file of this user that others cannot open."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _OTHERS


def _user(number: int) -> str:
    return "root" if number == 0 else f"user {number}"
