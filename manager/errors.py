"""Every error Equipoise raises on purpose."""

from __future__ import annotations

import math
from collections.abc import Sequence


class EquipoiseError(Exception):
    """Base of all expected errors; its text is meant for an operator."""


class SettingsError(EquipoiseError):
    """A setting is unknown, of the wrong type, or outside its range."""


class InvalidRequest(EquipoiseError):
    """A request holds an unusable value. ``field`` is a JSON path such as ``sla.response_time_ms``."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class NotFound(EquipoiseError):
    """No object of that kind has that name."""


class Conflict(EquipoiseError):
    """The object changed meanwhile, or another object stands in the way."""


class JoinRefused(EquipoiseError):
    """A host may not join with this token: it is unknown, used, expired, or for another host."""


class SignInRefused(EquipoiseError):
    """The name is unknown or the password is wrong; the text does not say which."""


class SignInThrottled(EquipoiseError):
    """Too many attempts to sign in failed. ``retry_after_s`` is how long to wait, in seconds."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"too many failed attempts to sign in: try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class TooManyRequests(EquipoiseError):
    """A source exceeds its rate limit. ``retry_after_s`` is how long to wait, in whole seconds."""

    def __init__(self, what: str, wait_s: float) -> None:
        self.retry_after_s = math.ceil(wait_s)
        super().__init__(f"{what}: try again in {self.retry_after_s} s")


class Busy(EquipoiseError):
    """The limit of simultaneous operations is reached: try again later."""


class ProtocolRefused(EquipoiseError):
    """An agent uses another protocol than this manager."""


class DatabaseUnavailable(EquipoiseError):
    """The manager's database does not answer, is busy for too long, or lacks its tables."""


class BackupError(EquipoiseError):
    """A backup cannot be written, is damaged, or may not be restored; nothing was changed."""


class HostError(EquipoiseError):
    """The kernel or libvirt refused an operation. ``errno`` is 0 where the source gives none."""

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class VmVanished(HostError):
    """The VM's process or cgroup is gone: it was stopped or migrated away."""


class DomainHangs(HostError):
    """Calls of libvirt about that domain do not return, or too many wait already."""


class JournalError(EquipoiseError):
    """The journal could not be written or read, so no setting may be changed."""


class ManagerUnavailable(EquipoiseError):
    """The manager could not be reached or refused the request."""


class ManagerRefused(ManagerUnavailable):
    """The manager answered with an error. ``status``: of HTTP; ``fields``: bad ones, with the reason."""

    def __init__(self, message: str, status: int, fields: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.fields = tuple(fields)


class TwinRefused(EquipoiseError):
    """Of a recording no twin can be made that is worth anything; the text says why."""


class RecordingError(EquipoiseError):
    """A recording is malformed or cut off, or there is nothing to record."""


class AlreadyRunning(EquipoiseError):
    """Another agent holds this host's lock."""


class UnsafeFile(EquipoiseError):
    """Others could read or exchange a file or folder that must be the service's alone; the text says what to do."""
