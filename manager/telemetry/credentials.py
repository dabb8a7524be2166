"""Credentials of sources: files on the agent's host, which the manager can name, and neither see nor send elsewhere."""

from __future__ import annotations

import base64
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from manager.model.fields import NAME_PATTERN
from manager.model.url import covers
from manager.telemetry.feed import SourceError

DEFAULT_FOLDER = Path("/etc/equipoise/credentials")
_MOST_BYTES = 64 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_KEYS = frozenset({"url", "user", "password", "token", "headers"})
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_CONNECTION = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade"})
Headers = Mapping[str, str]
ReadHeaders = Callable[[], Headers]
"""Reads the headers of a source's requests, again each time it is started. Raises CredentialError."""


class CredentialError(SourceError):
    """A credential cannot be used. The text names its file and what is wrong, and quotes nothing that is in it."""


class Credentials:
    """The files of one folder."""

    def __init__(self, folder: Path = DEFAULT_FOLDER) -> None:
        self._folder = folder

    def headers(self, name: str | None, url: str) -> Headers:
        """What a request for ``url`` has to carry; nothing where no credential is named.

        Raises CredentialError: without a file, for one that others could read or exchange, that is not understood, or
        that is not for this URL.
        """
        if name is None:
            return {}
        if not re.fullmatch(NAME_PATTERN, name):
            raise CredentialError("the credential's name is refused")
        path = self._folder / name
        try:
            fields = tomllib.loads(self._read(path).decode())
        except FileNotFoundError:
            raise CredentialError(f"there is no credential {path}: make it, for the agent's user alone") from None
        except OSError as error:
            raise CredentialError(f"the credential {path} cannot be read: {error.strerror}") from None
        except (UnicodeDecodeError, tomllib.TOMLDecodeError):  # which quote the file
            raise CredentialError(f"the credential {path} is not valid TOML") from None
        try:
            return _headers(fields, url)
        except ValueError as error:
            raise CredentialError(f"the credential {path} {error}") from None

    def _read(self, path: Path) -> bytes:
        """Raises OSError, CredentialError."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            _check(self._folder, os.fstat(folder), _OTHERS_WRITE, "go-w")
            if not stat.S_ISREG(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise CredentialError(f"the credential {path} is no regular file")
            file = os.open(path.name, flags, dir_fd=folder)
            try:
                _check(path, os.fstat(file), _OTHERS, "go-rwx")
                content = os.read(file, _MOST_BYTES + 1)
            finally:
                os.close(file)
        finally:
            os.close(folder)
        if len(content) > _MOST_BYTES:
            raise CredentialError(f"the credential {path} has more than {_MOST_BYTES} bytes")
        return content


def _check(path: Path, status: os.stat_result, refused: int, change: str) -> None:
    if status.st_uid not in {0, os.geteuid()}:
        raise CredentialError(f"{path} belongs to user {status.st_uid}: `chown` it to the agent's user")
    if status.st_mode & refused:
        raise CredentialError(f"others could read or exchange {path}: `chmod {change}` it")


def _headers(fields: Mapping[str, Any], url: str) -> Headers:
    """Raises ValueError with what follows the file's name."""
    if unknown := fields.keys() - _KEYS:
        raise ValueError(f"has {len(unknown)} unknown keys; allowed: {', '.join(sorted(_KEYS))}")
    prefixes = fields.get("url", [])
    prefixes = [prefixes] if isinstance(prefixes, str) else prefixes
    if not isinstance(prefixes, list) or not prefixes or not all(isinstance(prefix, str) for prefix in prefixes):
        raise ValueError("names no `url`, or list of them, that it is for")
    try:
        is_for_it = any(covers(prefix, url) for prefix in prefixes)
    except ValueError:
        raise ValueError("has a `url` that is none, with http:// or https:// and a host") from None
    if not is_for_it:
        raise ValueError("is not for this URL: its `url` names another server, or another path")
    headers = _made(fields)
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name.lower() in _CONNECTION:
            raise ValueError("has a header of a name that is not allowed")
        if not value.isascii() or not value.isprintable():
            raise ValueError("has a header whose value is not printable ASCII")
    return headers


def _made(fields: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: fields[name] for name in ("user", "password", "token") if name in fields}
    headers = fields.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(text, str) for text in (*texts.values(), *headers.values())):
        raise ValueError("has a value that is no text")
    made = dict(headers)
    if texts.keys() == {"user", "password"}:
        if ":" in texts["user"]:
            raise ValueError("has a user with a colon, which there cannot be")
        secret = f"{texts['user']}:{texts['password']}".encode()
        made["Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
    elif texts.keys() == {"token"}:
        made["Authorization"] = f"Bearer {texts['token']}"
    elif texts or not headers:
        raise ValueError("has neither `user` and `password`, nor `token`, nor `headers`")
    return made
