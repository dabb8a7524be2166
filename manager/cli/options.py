"""Options made from the table of settings, and what commands share."""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from manager.errors import EquipoiseError, SettingsError
from manager.logs import formatter
from manager.loop.replicated import replica_of
from manager.model.fields import NAME_PATTERN
from manager.plain import plain
from manager.private import claim_folder, make_file, replace_file
from manager.protocol.client import ANSWER_S, ManagerClient
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
_PICTURES = (".png", ".svg", ".pdf")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_WAKE_S = 5.0
CLIENT_SETTINGS = ("state_dir", "manager_url", "manager_ca_file", "token_file")
LIMIT_SETTINGS = ("log_dirs", "probe_networks", "max_mode", "allow", "deny", "min_pcpus")
"""Limits of an agent that no manager can lift."""

log = logging.getLogger(__name__)


class Failure(click.ClickException):
    """An expected error, printed without a traceback; exit status 1."""

    def show(self, file: Any = None) -> None:
        """Print to standard error."""
        click.echo(f"equipoise: {plain(self.message)}", err=True, file=file)


class ManPage(click.Command):
    """A command with help like a manual page, whose expected errors end it with their text and status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises Failure."""
        try:
            return super().invoke(ctx)
        except EquipoiseError as error:
            raise Failure(str(error)) from error

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the epilog as it is written."""
        del ctx
        if self.epilog:
            formatter.write_paragraph()
            formatter.write(self.epilog.strip("\n") + "\n")


class ManPageGroup(ManPage, click.Group):
    """A group of such commands."""

    command_class = ManPage


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def with_settings(*names: str) -> Decorator:
    """Give a command ``--config`` and an option for each named setting, and call it with ``settings``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*, config: Path | None, **arguments: Any) -> Any:
            flags = {name: arguments.pop(name) for name in names}
            settings = load_settings(config, os.environ, flags)
            _warn_of_flags(settings)
            return function(settings=settings, **arguments)

        decorated: Callable[..., Any] = wrapper
        for name in reversed(names):
            decorated = _option(BY_NAME[name])(decorated)
        config_help = f"Read settings from this TOML file. [default: {DEFAULT_CONFIG_FILE}, if it exists]"
        path = click.Path(path_type=Path)
        return click.option("--config", type=path, envvar=CONFIG_VARIABLE, metavar="FILE", help=config_help)(decorated)

    return decorate


class NumberRange(click.FloatRange):
    """A number in a range: what is none is in no range, either."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Raises click.BadParameter."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not in the range {self._describe_range()}.", param, ctx)
        return number


class ObjectName(click.types.StringParamType):
    """Name of a host, VM or application, or nothing. What is no name, such as ``a/b``, would ask for something else."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name. Raises click.BadParameter."""
        if value and not re.fullmatch(NAME_PATTERN, value):
            words = "1 to 63 letters, digits, dots, dashes and underscores, a letter or digit first"
            self.fail(f"{value!r} is refused: a name has {words}", param, ctx)
        return value


class WrittenFile(click.Path):
    """A file for what a command comes to: that it cannot be written is said before the work, not after it.

    It may be replaced by another: of a symbolic link the target is, and a device or a pipe is refused.
    """

    def __init__(self, *, allow_dash: bool = False) -> None:
        """The value is a Path; with ``allow_dash`` it may be ``-``."""
        super().__init__(dir_okay=False, path_type=Path, allow_dash=allow_dash)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises click.BadParameter."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if self.allow_dash and str(path) == "-":
            return path
        if path.is_symlink():
            path = Path(os.path.realpath(path))
        if path.exists() and not path.is_file():
            instead = "; - is standard output" if self.allow_dash else ""
            self.fail(f"{value} cannot be written: it is no regular file{instead}", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{value} cannot be written: there is no folder {path.parent}", param, ctx)
        # Some are replaced as a whole, some written as they are.
        if not (os.access(path.parent, os.W_OK) or (path.exists() and os.access(path, os.W_OK))):
            self.fail(f"{value} cannot be written", param, ctx)
        return path


class PictureFile(WrittenFile):
    """A file for a picture: its name says the format."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises click.BadParameter."""
        super().convert(value, param, ctx)
        path = Path(os.fsdecode(value))  # of a link the name, too
        if path.suffix not in _PICTURES:
            self.fail(f"{value} is refused: use a name that ends in {', '.join(_PICTURES)}", param, ctx)
        return path


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _warn_of_flags(settings: Settings) -> None:
    for name, source in settings.sources.items():
        if source.startswith("flag ") and settings.shown(name) != settings.values[name]:
            say(
                f"equipoise: {source} holds a password, which all users see in the list of processes: use the settings"
                f" file, or {ENV_PREFIX}{name.upper()}",
                err=True,
            )


def _option(setting: Setting) -> Decorator:
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
    """The state directory, closed to other users. Raises SettingsError, UnsafeFile.

    ``of_another``: root may also use that of the manager's user.
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

    That of a simulated host is marked. It is refused for a real host, and the other way round: the agent would take
    the journal for one from before a reboot, and forget its originals.
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
    """The environment that gives a child process the same settings, which reads no file of them itself."""
    changed = {name: str(value) for name, value in settings.values.items() if settings.sources[name] != "default"}
    given = {ENV_PREFIX + name.upper(): value for name, value in changed.items()}
    return dict(os.environ) | given | {CONFIG_VARIABLE: os.devnull}


def lock_path(settings: Settings) -> Path:
    """The lock that this host's agent holds; a simulated host has its own."""
    if settings.text("simulate"):
        return settings.state_dir / _LOCK_FILE
    return Path(settings.text("root_dir")) / "run/equipoise-agent/lock"


def push_token(settings: Settings) -> str:
    """The token for posting response times, empty if none is set. Raises SettingsError."""
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
    """Log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(settings.text("log_format")))
    logging.basicConfig(level=settings.text("log_level").upper(), handlers=[handler])
    for noisy in ("httpx", "httpcore", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # They warn of every malformed request, and of every job that is due while it runs.
    for noisy in ("uvicorn.error", "apscheduler"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


@contextmanager
def stop_signal(*more: signal.Signals) -> Iterator[threading.Event]:
    """An event that SIGTERM, SIGINT and ``more`` set while the block runs; of these not those that `nohup` ignores."""
    stop = threading.Event()
    heard = [number for number in more if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda _number, _frame: stop.set()) for number in (*_SIGNALS, *heard)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(stop: threading.Event) -> None:
    """Wait for the event, in steps: between them Python runs the handlers of signals that other threads got.

    The kernel prefers the main thread, which waits here; a signal wakes it at once.
    """
    while not stop.wait(_WAKE_S):
        pass


_REMEDY = "Set EQUIPOISE_TOKEN or --token-file, or make a token on the manager's machine with `equipoise token create`"


def read_token(settings: Settings, default_file: str = ADMIN_TOKEN_FILE) -> str:
    """The bearer token: from EQUIPOISE_TOKEN, the setting token_file, or ``default_file`` in the state directory.

    Raises SettingsError saying how to get one.
    """
    if TOKEN_VARIABLE in os.environ:
        return _checked(os.environ[TOKEN_VARIABLE].strip(), TOKEN_VARIABLE)
    path = Path(settings.text("token_file") or settings.state_dir / default_file)
    try:
        if path.stat().st_mode & 0o077:
            log.warning("others may read the token in %s: chmod 0600 it", path)
        token = path.read_text(errors="replace").strip()
    except OSError as error:
        raise SettingsError(f"no token: {path} cannot be read ({error.strerror}). {_REMEDY}") from error
    if not token:  # as a power cut may leave a new file
        raise SettingsError(f"no token: {path} is empty. {_REMEDY}")
    return _checked(token, str(path))


def _checked(token: str, source: str) -> str:
    """The token, which goes into a header. Raises SettingsError, without what may be a secret."""
    if not all("!" <= letter <= "~" for letter in token):
        raise SettingsError(f"no token: {source} holds something else than one word of ASCII. {_REMEDY}")
    return token


def write_secret(path: Path, secret: str) -> None:
    """Atomically replace a file that only its owner can read. Raises OSError."""
    replace_file(path, f"{secret}\n".encode())


def connect(settings: Settings, *, answer_s: float = ANSWER_S) -> ManagerClient:
    """A client for the manager that the settings name; it waits ``answer_s`` seconds for an answer."""
    return client_for(settings, read_token(settings), answer_s=answer_s)


def client_for(settings: Settings, token: str, url: str = "", *, answer_s: float = ANSWER_S) -> ManagerClient:
    """A client with a token for the manager that the settings name, or the one at ``url``. Raises EquipoiseError."""
    url = url or settings.text("manager_url")
    authorities = client_context(settings.text("manager_ca_file")) if url.startswith("https:") else None
    return ManagerClient(url, token, authorities=authorities, answer_s=answer_s)
