"""The settings: typed, bounded tables, and the source of each value in force.

Later sources win: the default, the TOML file, the environment (``EQUIPOISE_<NAME>``), a command-line flag.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from manager.errors import SettingsError
from manager.model.cpus import parse_cpus
from manager.model.fields import MANAGER, NAME_PATTERN
from manager.model.limits import LEAST_PCPUS, USUAL, AgentLimits, parse_allow, parse_deny
from manager.model.reach import parse_reach
from manager.model.registration import Mode

Value = str | int | float
ENV_PREFIX = "EQUIPOISE_"
DATABASE_FILE = "equipoise.db"
DEFAULT_CONFIG_FILE = Path("/etc/equipoise/equipoise.toml")
COOKIE_CHOICES = ("auto", "always")
_URL_PASSWORD = re.compile(r"(?i)(?<=://)([^/?#:@]*:).*(?=@)|([?&](?:ssl)?password=)[^&]*")
MODES = ("released", "observe", "enforce")
GUARD_USES = ("off", "observe", "on")
SWITCH = ("off", "on")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. ``minimum``/``maximum`` bound numbers, ``choices`` bounds text."""

    name: str
    default: Value
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def range_text(self) -> str:
        """The range in words, such as ``0.2 to 300`` or ``debug, info, warning or error``."""
        if self.choices:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if self.minimum is not None and self.maximum is not None:
            return f"{_plain(self.minimum)} to {_plain(self.maximum)}"
        return {"str": "text", "int": "a whole number", "float": "a number"}[type(self.default).__name__]

    def parse(self, raw: object, source: str) -> Value:
        """Check ``raw`` (text, or a TOML value) against type and range.

        Raises SettingsError naming the setting, the value, the range and the source.
        """
        kind = type(self.default)
        readable = {str: str, int: str | int, float: str | int | float}[kind]
        try:
            if isinstance(raw, bool) or not isinstance(raw, readable):
                raise ValueError
            value = kind(raw)
            low, high = (value if bound is None else bound for bound in (self.minimum, self.maximum))
            if value not in (self.choices or (value,)) or not low <= value <= high:  # type: ignore[operator]
                raise ValueError
        except (ValueError, OverflowError):  # a whole number may be too large for a float
            raise SettingsError(
                f"setting {self.name} = {raw!r} (from {source}) is refused: use {self.range_text}"
            ) from None
        return value


def _plain(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


SHARED_SETTINGS = (
    Setting("state_dir", "/var/lib/equipoise", "folder of the database, the journal, tokens and the agent's cache"),
    Setting("samples_per_s", 20_000.0, "response times per second that one source may send; 0: any number", 0, 1e9),
    Setting("interval_s", 5.0, "seconds of a control interval, and of a window of response times", 0.05, 300),
    Setting("stale_s", 30.0, "age in seconds at which a window of response times counts as no data", 1, 3600),
    Setting("min_samples", 20, "response times a window needs before its percentile is believed", 1, 100_000),
    Setting("log_level", "info", "least severity that is logged", choices=LOG_LEVELS),
    Setting("log_format", "text", "lines of the log: for people; json: one object a line", choices=LOG_FORMATS),
)
MANAGER_SETTINGS = (
    Setting("database_url", "", "SQLAlchemy URL of the manager's database; empty: SQLite in state_dir"),
    Setting("listen_host", "127.0.0.1", "address the manager listens on"),
    Setting("listen_port", 8750, "TCP port the manager listens on", 1, 65535),
    Setting("workers", 0, "processes that serve; 0: with PostgreSQL one for each CPU, up to 8; SQLite has one", 0, 64),
    Setting("api_threads", 8, "threads that answer REST requests, of all workers; each has at least 4", 1, 128),
    Setting("live_streams", 32, "pages of the dashboard with live updates at once; others poll", 0, 256),
    Setting("requests_per_s", 100.0, "req/s of a token or user that are answered; 0: any number", 0, 1e6),
    Setting("tls_certificate", "", "PEM file of the manager's certificate and its chain; empty: no TLS of its own"),
    Setting("tls_key", "", "PEM file of that certificate's key, without a passphrase; empty: it is in tls_certificate"),
    Setting("trusted_proxy", "", "IP address of the proxy whose X-Forwarded-For and -Proto are believed; empty: none"),
    Setting("secure_cookies", "auto", "sessions by https only: auto: if they began so; always", choices=COOKIE_CHOICES),
    Setting("session_hours", 12, "hours after which a session of the dashboard ends", 1, 720),
    Setting("session_idle_min", 120, "minutes without a request after which it ends", 5, 1440),
    Setting(
        "attainment_target",
        0.99,
        "share of intervals in which each SLA is to hold; the rest is its error budget",
        0.5,
        0.99999,
    ),
    Setting("retention_days", 30.0, "days that decisions and events are kept", 0.01, 3650),
    Setting("raw_days", 1.0, "days that windows and ticks are kept as they were reported", 0.1, 3650),
    Setting("audit_days", 400.0, "days that the audit of who changed what is kept", 1, 3650),
    Setting("minutes_days", 30.0, "days that response times and ticks are kept rolled up by minute", 1, 3650),
    Setting("hours_days", 730.0, "days that response times and ticks are kept rolled up by hour", 1, 3650),
    Setting("silent_intervals", 6, "intervals without a report after which a host counts as silent", 3, 10_000),
    Setting("small_fleet", 20, "hosts up to which agents report all in each interval; 0: never", 0, 100_000),
    Setting("clock_bound_s", 1.0, "seconds by which a host's clock may differ without an event", 0.01, 3600),
)
AGENT_SETTINGS = (
    Setting("manager_url", "http://127.0.0.1:8750", "where agent and command line find the manager"),
    Setting("manager_ca_file", "", "PEM file of the authorities for the manager's certificate; empty: the system's"),
    Setting("token_file", "", "file holding the bearer token; empty: the one `equipoise run` made in state_dir"),
    Setting("host_name", socket.gethostname() or "localhost", "name this host is registered under"),
    Setting("libvirt_uri", "qemu:///system", "libvirt connection of the agent"),
    Setting(
        "migration_uri",
        "qemu+tls://{host}/system",
        "libvirt connection to another host, to which a VM migrates; {host} stands for its name",
    ),
    Setting("root_dir", "/", "root of the /proc, /sys and /run that the agent reads (for tests and containers)"),
    Setting("reconcile_s", 30.0, "seconds between full listings of the domains, besides lifecycle events", 1, 3600),
    Setting(
        "discovery_limit_s",
        60.0,
        "seconds without a full listing after which that is an alarm; at least 3 x reconcile_s",
        1,
        3600,
    ),
    Setting("sync_s", 1.0, "seconds between exchanges of the agent with the manager", 0.1, 60),
    Setting("managed_cpus", "", "pCPUs that may be given to critical vCPUs, such as 2-7; empty: all online ones"),
    Setting("log_dirs", "/var/log", "folders that logs of sources may be in, with commas; empty: none is read"),
    Setting("probe_networks", "unicast", "what sources may ask, with commas: unicast, loopback, networks; empty: none"),
    Setting("credentials_dir", "/etc/equipoise/credentials", "folder of the credentials that sources may name"),
    Setting("find_services", "on", "find the services in VMs by the packets at their taps", choices=SWITCH),
    Setting("count_instructions", "off", "count instructions and cache misses of VMs by the PMU", choices=SWITCH),
    Setting("max_mode", "enforce", "the most that this agent does, whatever the manager says", choices=MODES),
    Setting(
        "allow",
        "",
        "what this agent may do besides, with commas: real-time, scheduler, interrupts, power, mount, migrate",
    ),
    Setting(
        "deny",
        "",
        "what it must not do, with commas: weight, pin, idle, quota, nice, warp, cache, memory, disk, network",
    ),
    Setting("min_pcpus", LEAST_PCPUS, "pCPUs whose time a VM is limited to at least, whatever was registered", 0, 1024),
    Setting("guard", "off", "batch VMs held at once when critical vCPUs wait; observe: only told", choices=GUARD_USES),
    Setting("guard_interval_ms", 50, "milliseconds between two of its samples of vCPU wait", 20, 50),
    Setting("agent_listen_host", "127.0.0.1", "address of the agent's metrics page"),
    Setting("agent_listen_port", 8751, "TCP port of the agent's metrics page; 0 switches it off", 0, 65535),
    Setting("push_socket", "", "Unix socket at which response times are posted; empty: run/push.sock in state_dir"),
    Setting("push_listen_host", "127.0.0.1", "address at which VMs and others post response times by TCP"),
    Setting("push_listen_port", 0, "TCP port for that; 0: only at the Unix socket", 0, 65535),
    Setting("push_token_file", "", "file of the token with which posts are believed from anywhere; empty: none is"),
    Setting("syslog_listen_host", "127.0.0.1", "IP address the agent receives NGINX log lines at"),
    Setting("syslog_listen_port", 5514, "UDP port the agent receives NGINX log lines at; 0 switches it off", 0, 65535),
    Setting("outbox_rows", 100_000, "records the agent keeps for a manager that is away", 100, 10_000_000),
    Setting("simulate", "", "scenario that the agent simulates in place of this host; empty: none, the host is real"),
    Setting("simulate_speed", 1.0, "seconds of a simulated host in one of the clock", 0.1, 100),
)
SETTINGS: tuple[Setting, ...] = (*SHARED_SETTINGS, *MANAGER_SETTINGS, *AGENT_SETTINGS)
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings in force, with the source of each value."""

    values: Mapping[str, Value]
    sources: Mapping[str, str]

    def text(self, name: str) -> str:
        """A text setting."""
        return str(self.values[name])

    def whole(self, name: str) -> int:
        """A whole-number setting."""
        return int(self.values[name])

    def number(self, name: str) -> float:
        """A numeric setting."""
        return float(self.values[name])

    def shown(self, name: str) -> Value:
        """A setting without the password that a URL may hold."""
        value = self.values[name]
        return _URL_PASSWORD.sub(r"\1\2***", value) if isinstance(value, str) else value

    @property
    def limits(self) -> AgentLimits:
        """The limits of the agent."""
        allowed = (USUAL | parse_allow(self.text("allow"))) - parse_deny(self.text("deny"))
        return AgentLimits(Mode(self.text("max_mode")), allowed, self.number("min_pcpus"))

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """Folders of log files."""
        return parse_folders(self.text("log_dirs"))

    @property
    def trusted_proxy(self) -> str:
        """The address of the proxy, written as those of peers are; empty: none."""
        return parse_address(self.text("trusted_proxy"))

    @property
    def state_dir(self) -> Path:
        """The state directory as a path."""
        return Path(self.text("state_dir"))

    @property
    def database_url(self) -> str:
        """The manager's database, with the default filled in."""
        file = f"{self.state_dir.resolve()}/{DATABASE_FILE}".replace("%", "%25").replace("?", "%3F")
        return self.text("database_url") or f"sqlite:///{file}"


def parse_folders(text: str) -> tuple[str, ...]:
    """A list of absolute folders with commas. Raises ValueError."""
    folders = tuple(filter(None, (part.strip() for part in text.split(","))))
    for folder in folders:
        if not folder.startswith("/") or {"..", "\0"} & {*folder.split("/"), *folder} or not folder.strip("/"):
            raise ValueError(f"{folder!r} is no absolute folder below /, without ..")
    return folders


def parse_address(text: str) -> str:
    """An IP address in its usual form, empty for none. Raises ValueError."""
    if not text:
        return ""
    parsed = ipaddress.ip_address(text)
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _check_host_name(text: str) -> None:
    if text == MANAGER:
        raise ValueError(f"{text!r} stands for the manager in events")
    if not re.fullmatch(NAME_PATTERN, text):
        raise ValueError(
            f"{text!r}: use 1 to 63 letters, digits, dots, dashes and underscores, a letter or digit first"
        )


_READ: Mapping[str, Callable[[str], object]] = {
    "host_name": _check_host_name,
    "managed_cpus": parse_cpus,
    "trusted_proxy": parse_address,
    "log_dirs": parse_folders,
    "probe_networks": parse_reach,
    "allow": parse_allow,
    "deny": parse_deny,
}
"""Further checks of texts; they raise ValueError."""


def load_settings(config_file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Value | None]) -> Settings:
    """Combine all sources.

    ``config_file`` None: the default file, if it exists. ``flags``: those of the command line; None: not given. Raises
    SettingsError for the first bad setting.
    """
    values: dict[str, Value] = {setting.name: setting.default for setting in SETTINGS}
    sources = dict.fromkeys(values, "default")

    def take(name: str, raw: object, source: str) -> None:
        if name not in BY_NAME:
            raise SettingsError(f"{source} names an unknown setting {name!r}; `equipoise config` lists them all")
        values[name] = BY_NAME[name].parse(raw, source)
        sources[name] = source

    for name, raw in _read_file(config_file).items():
        take(name, raw, str(config_file or DEFAULT_CONFIG_FILE))
    for variable, raw_text in sorted(environ.items()):
        name = variable.removeprefix(ENV_PREFIX)
        if variable.startswith(ENV_PREFIX) and name not in {"CONFIG", "TOKEN"}:
            take(name.lower(), raw_text, f"environment {variable}")
    for name, raw_flag in flags.items():
        if raw_flag is not None:
            take(name, raw_flag, f"flag --{name.replace('_', '-')}")
    for name, read in _READ.items():
        try:
            read(str(values[name]))
        except ValueError as error:
            raise SettingsError(f"setting {name} (from {sources[name]}) is refused: {error}") from None
    return Settings(values, sources)


def _read_file(config_file: Path | None) -> Mapping[str, object]:
    path = config_file or DEFAULT_CONFIG_FILE
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        if config_file is None:
            return {}
        raise SettingsError(f"configuration file {path} does not exist") from None
    except OSError as error:
        raise SettingsError(f"configuration file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"configuration file {path} is not valid TOML: {error}") from None
