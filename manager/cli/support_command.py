"""`equipoise support-bundle`."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote

import click

from manager import __version__
from manager.cli.options import (
    ADMIN_PASSWORD_FILE,
    ADMIN_TOKEN_FILE,
    AGENT_TOKEN_FILE,
    JOURNAL_FILE,
    TOKEN_VARIABLE,
    ManPage,
    connect,
    environment,
    with_settings,
)
from manager.errors import EquipoiseError
from manager.masking import masked_json, masker
from manager.private import open_new
from manager.settings import SETTINGS, Settings
from manager.terminal import say

_LONGEST_S = 60
_LOG_LINES = 5000
_UNITS = ("equipoise-manager", "equipoise-agent", "equipoise")
_LISTS = ("/hosts", "/vms", "/applications", "/events", "/decisions")
_MOST = 500
_PASSWORD = re.compile(r"://[^/?#:@]*:(.*)@")
_EPILOG = """
CONTENT
  A new file that only its owner can read: versions, every setting in force and its source, the findings of `equipoise
  doctor`, the manager's hosts, VMs, applications, events and decisions, the end of the log of the systemd units, and a
  copy of the journal of original values. For what is not available it holds the reason. Tokens, passwords, keys, other
  recognised secrets, and everything in this machine's files of tokens and credentials are hidden; the database and its
  users are not included. Hosts, VMs and addresses are named: check the file before you share it.

EXAMPLES
  equipoise support-bundle
  equipoise support-bundle --config /etc/equipoise/manager.toml --output manager.tar.gz
"""


@click.command("support-bundle", cls=ManPage, epilog=_EPILOG)
@with_settings(*(setting.name for setting in SETTINGS))
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="The file to write. [default: by time]")
def support_bundle(settings: Settings, output: Path | None) -> None:
    """Collect what helps to investigate a problem, without secrets."""
    name = time.strftime("equipoise-support-%Y%m%dT%H%M%SZ", time.gmtime())
    path = output or Path(f"{name}.tar.gz")
    hide = masker(_known_secrets(settings))
    made = whole = False
    try:
        with open_new(path) as file, tarfile.open(fileobj=file, mode="w:gz") as bundle:
            made = True
            for part, content in _parts(settings, hide):
                entry = tarfile.TarInfo(f"{name}/{part}")
                entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                bundle.addfile(entry, io.BytesIO(content))
        whole = True
    except FileExistsError:
        raise EquipoiseError(f"{path} exists: choose another name with --output, or remove it") from None
    except OSError as error:
        raise EquipoiseError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        if made and not whole:
            path.unlink(missing_ok=True)  # a part of it is of no use, and would be in the way of the next
    say(str(path))


def _parts(settings: Settings, hide: Callable[[str], str]) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file; the reason, in place of what is not available."""
    texts: tuple[tuple[str, Callable[[], str]], ...] = (
        ("versions.json", _versions),
        ("settings.json", lambda: _settings(settings)),
        ("doctor.json", lambda: _doctor(settings)),
        *((f"manager{path}.json", lambda path=path: _listed(settings, path)) for path in _LISTS),
        *((f"log/{unit}.txt", lambda unit=unit: _log(unit)) for unit in _UNITS),
    )
    for name, make in texts:
        try:
            text = make()
        except (EquipoiseError, OSError, subprocess.SubprocessError) as error:
            text = f"not available: {error}\n"
        yield name, _without_secrets(name, text, hide).encode(errors="replace")
    try:
        yield JOURNAL_FILE, _copy(settings.state_dir / JOURNAL_FILE)
    except (OSError, sqlite3.Error) as error:
        yield f"{JOURNAL_FILE}.txt", f"not available: {error}\n".encode()


def _without_secrets(name: str, text: str, hide: Callable[[str], str]) -> str:
    """Hide secrets; in JSON in each text by itself, apart from what surrounds it."""
    if name.endswith(".json"):
        with suppress(ValueError):
            return _json(masked_json(json.loads(text), hide))
    return hide(text)


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _versions() -> str:
    libraries = sorted((distribution.metadata["Name"], distribution.version) for distribution in distributions())
    about = {"equipoise": __version__, "python": sys.version, "platform": platform.platform()}
    return _json(about | {"sqlite": sqlite3.sqlite_version, "libraries": dict(libraries)})


def _settings(settings: Settings) -> str:
    return _json({setting.name: [settings.shown(setting.name), settings.sources[setting.name]] for setting in SETTINGS})


def _doctor(settings: Settings) -> str:
    return _output([sys.executable, "-P", "-m", "manager.cli", "doctor", "--gentle", "--json"], environment(settings))


def _log(unit: str) -> str:
    return _output(["journalctl", "--unit", unit, "--lines", str(_LOG_LINES), "--output", "short-iso", "--no-pager"])


def _output(command: list[str], variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=variables, capture_output=True, timeout=_LONGEST_S, check=False)
    return (done.stdout + done.stderr).decode(errors="replace")


def _listed(settings: Settings, path: str) -> str:
    with closing(connect(settings)) as client:
        return _json(client.items(path, limit=_MOST))


def _copy(path: Path) -> bytes:
    """A consistent copy of an SQLite file that may be in use. Raises OSError, sqlite3.Error."""
    path.stat()  # else it would be created
    with (
        tempfile.NamedTemporaryFile() as copy,
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(copy.name)) as target,
    ):
        source.backup(target)
        return Path(copy.name).read_bytes()


def _credential(path: Path) -> Iterator[str]:
    """All texts of a file of credentials but URLs and users."""
    with suppress(OSError, ValueError):
        fields = tomllib.loads(path.read_text())
        headers = fields.get("headers")
        values = (*fields.items(), *(headers.items() if isinstance(headers, dict) else ()))
        yield from (value for name, value in values if isinstance(value, str) and name not in {"url", "user"})


def _known_secrets(settings: Settings) -> Iterator[str]:
    """Secrets in this machine's files, to hide wherever they occur."""
    yield os.environ.get(TOKEN_VARIABLE, "")
    if match := _PASSWORD.search(settings.text("database_url")):
        yield from (match[1], unquote(match[1]))
    with suppress(OSError, ValueError):
        yield from Path(settings.text("tls_key") or settings.text("tls_certificate")).read_text().splitlines()
    with suppress(OSError):
        for path in sorted(Path(settings.text("credentials_dir")).iterdir()):
            yield from _credential(path)
    for name in filter(None, (settings.text("token_file"), ADMIN_TOKEN_FILE, AGENT_TOKEN_FILE, ADMIN_PASSWORD_FILE)):
        with suppress(OSError, UnicodeDecodeError):
            yield (settings.state_dir / name).read_text().strip()
