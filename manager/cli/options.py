"""Options made from the table of settings, and what commands share."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from manager.errors import EquipoiseError, SettingsError
from manager.logs import formatter
from manager.loop.replicated import replica_of
from manager.plain import plain
from manager.private import claim_folder, make_file, replace_file
from manager.protocol.client import ManagerClient
from manager.settings import BY_NAME, DATABASE_FILE, DEFAULT_CONFIG_FILE, ENV_PREFIX, Setting, Settings, load_settings
from manager.terminal import say
from manager.tls import client_context

ADMIN_TOKEN_FILE = "admin.token"  # noqa: S105 - a file's name
AGENT_TOKEN_FILE = "agent.token"  # noqa: S105 - a file's name
ADMIN_PASSWORD_FILE = "admin-password"  # noqa: S105 - a file's name
JOURNAL_FILE = "journal.db"
SIMULATED_FILE = "simulated"
OUTBOX_FILE = "outbox.db"
ASSIGNMENT_FILE = "assignment.json"
_LOCK_FILE = "agent.lock"
_OF_STATE_DIR = frozenset(
    {
        ADMIN_TOKEN_FILE,
        AGENT_TOKEN_FILE,
        ADMIN_PASSWORD_FILE,
        JOURNAL_FILE,
        replica_of(Path(JOURNAL_FILE)).name,
        SIMULATED_FILE,
        OUTBOX_FILE,
        ASSIGNMENT_FILE,
        DATABASE_FILE,
        _LOCK_FILE,
    }
)
CONFIG_VARIABLE = ENV_PREFIX + "CONFIG"
TOKEN_VARIABLE = ENV_PREFIX + "TOKEN"
_SHORTEST_TOKEN = 24
CLIENT_SETTINGS = ("state_dir", "manager_url", "manager_ca_file", "token_file")
LIMIT_SETTINGS = ("log_dirs", "probe_networks", "max_mode", "allow", "deny", "min_pcpus")
"""The most that an agent does: nothing of it is the manager's."""


log = logging.getLogger(__name__)


class Failure(click.ClickException):
    """An expected error, printed without a traceback; exit status 1."""

    def show(self, file: Any = None) -> None:
        """Print to standard error."""
        click.echo(f"equipoise: {plain(self.message)}", err=True, file=file)


class OnePage(click.Command):
    """A command whose help is laid out like a manual page."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the epilog as it is written."""
        if self.epilog:
            formatter.write_paragraph()
            formatter.write(self.epilog.strip("\n") + "\n")
        del ctx


class OnePageGroup(OnePage, click.Group):
    """A group of commands that is a command itself, laid out likewise."""


def with_settings(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command ``--config`` and an option for each named setting, and call it with ``settings``.

    Expected errors of the command end it with their text and status 1.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*, config: Path | None, **arguments: Any) -> Any:
            flags = {name: arguments.pop(name) for name in names}
            try:
                chosen = config or (Path(os.environ[CONFIG_VARIABLE]) if CONFIG_VARIABLE in os.environ else None)
                settings = load_settings(chosen, os.environ, flags)
                _warn_of_flags(settings)
                return function(settings=settings, **arguments)
            except EquipoiseError as error:
                raise Failure(str(error)) from error

        decorated: Callable[..., Any] = wrapper
        for name in reversed(names):
            decorated = _option(BY_NAME[name])(decorated)
        config_help = f"Read settings from this TOML file. [default: {DEFAULT_CONFIG_FILE}, if it exists]"
        return click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help=config_help)(decorated)

    return decorate


def _warn_of_flags(settings: Settings) -> None:
    for name, source in settings.sources.items():
        if source.startswith("flag ") and settings.shown(name) != settings.values[name]:
            say(
                f"equipoise: {source} holds a password, which all users see in the list of processes: use the settings"
                f" file, or {ENV_PREFIX}{name.upper()}",
                err=True,
            )


def _warn_of_mode(path: Path) -> None:
    with suppress(OSError):
        if path.stat().st_mode & 0o077:
            log.warning("others may read the token in %s: chmod 0600 it", path)


def _option(setting: Setting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    default = "this machine's name" if setting.name == "host_name" else setting.default
    text = setting.help[0].upper() + setting.help[1:]
    bounds = "" if setting.range_text == "text" else f" Range: {setting.range_text}."
    shown = f" [default: {default}]" if default != "" else ""
    return click.option(
        "--" + setting.name.replace("_", "-"),
        setting.name,
        metavar="VALUE",
        default=None,
        help=f"{text}.{bounds}{shown}",
    )


def make_state_dir(settings: Settings, *, of_another: bool = True) -> Path:
    """The state directory, which from now on is its owner's alone. Raises SettingsError, UnsafeFile.

    ``of_another``: root may use that of the manager's user, too.
    """
    try:
        claim_folder(settings.state_dir, _OF_STATE_DIR, of_another=of_another)
    except OSError as error:
        raise SettingsError(
            f"setting state_dir = {settings.text('state_dir')!r} cannot be used: {error.strerror}; run as root, or"
            " choose another folder with --state-dir"
        ) from error
    return settings.state_dir


def claim_state_dir(settings: Settings) -> Path:
    """The state directory for an agent, made if it is missing. Raises SettingsError.

    One of a simulated host is marked, and never used for a real one or the other way round: the agent of the one would
    take the other's journal for one of before a reboot, and forget the originals in it.
    """
    folder = make_state_dir(settings, of_another=False)
    mark, simulate = folder / SIMULATED_FILE, bool(settings.text("simulate"))
    used = any((folder / name).exists() for name in (JOURNAL_FILE, DATABASE_FILE))
    if used and mark.exists() is not simulate:
        of = "real" if simulate else "simulated"
        raise SettingsError(f"setting state_dir = {str(folder)!r} is that of a {of} host; choose another folder")
    if simulate:
        try:
            make_file(mark)
        except OSError as error:
            raise SettingsError(f"setting state_dir = {str(folder)!r} cannot be used: {error.strerror}") from error
    return folder


def environment(settings: Settings) -> dict[str, str]:
    """The environment that gives a child process the same settings, whatever they came from here."""
    given = {name: str(value) for name, value in settings.values.items() if settings.sources[name] != "default"}
    return dict(os.environ) | {ENV_PREFIX + name.upper(): value for name, value in given.items()}


def lock_path(settings: Settings) -> Path:
    """The lock that the agent of this host holds; a simulated host has one of its own."""
    if settings.text("simulate"):
        return settings.state_dir / _LOCK_FILE
    return Path(settings.text("root_dir")) / "run/equipoise-agent/lock"


def push_token(settings: Settings) -> str:
    """The token with which response times are posted, empty where none is set. Raises SettingsError."""
    path = settings.text("push_token_file")
    if not path:
        return ""
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"setting push_token_file = {path!r} cannot be read: {error}") from error
    if len(token) < _SHORTEST_TOKEN:
        raise SettingsError(
            f"setting push_token_file: the token in {path} has {len(token)} characters; allowed: {_SHORTEST_TOKEN} or"
            " more, such as `openssl rand -base64 32` makes"
        )
    return token


def start_logging(settings: Settings) -> None:
    """Log to standard error: systemd and terminals add or need nothing else."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(settings.text("log_format")))
    logging.basicConfig(level=settings.text("log_level").upper(), handlers=[handler])
    for noisy in ("apscheduler", "httpx", "httpcore", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of whatever anybody sends


def read_token(settings: Settings, default_file: str = ADMIN_TOKEN_FILE) -> str:
    """The bearer token: from EQUIPOISE_TOKEN, the setting token_file, or the file `equipoise run` made.

    Raises SettingsError saying how to get one.
    """
    if TOKEN_VARIABLE in os.environ:
        return os.environ[TOKEN_VARIABLE].strip()
    path = Path(settings.text("token_file") or settings.state_dir / default_file)
    try:
        _warn_of_mode(path)
        return path.read_text().strip()
    except OSError as error:
        raise SettingsError(
            f"no token: {path} cannot be read ({error.strerror}). Set EQUIPOISE_TOKEN or --token-file, or make a token"
            " on the manager's machine with `equipoise token create`"
        ) from error


def write_secret(path: Path, secret: str) -> None:
    """Replace a file as a whole, readable by its owner alone: whoever waits for it must not find it empty.

    Raises OSError.
    """
    replace_file(path, f"{secret}\n".encode())


def connect(settings: Settings) -> ManagerClient:
    """A client for the manager that the settings name."""
    return client_for(settings, read_token(settings))


def client_for(settings: Settings, token: str, url: str = "") -> ManagerClient:
    """A client with a token for the manager that the settings name, or the one at ``url``. Raises EquipoiseError."""
    url = url or settings.text("manager_url")
    authorities = client_context(settings.text("manager_ca_file")) if url.startswith("https:") else None
    return ManagerClient(url, token, authorities=authorities)
