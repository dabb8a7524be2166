"""Every error Equipoise raises on purpose.

EquipoiseError
├── SettingsError           a setting is unknown, malformed or out of range
├── InvalidRequest          a request names an unusable value; carries the field
├── NotFound, Conflict      of registered objects
├── JoinRefused             a host may not join with this token
├── SignInRefused           an unknown name or a wrong password
├── SignInThrottled         too many of these; carries when to try again
├── TooManyRequests         one source asks for more than its part; carries when to try again
├── Busy                    as many as are allowed do this already
├── ProtocolRefused         an agent speaks another protocol
├── DatabaseUnavailable     the manager's database cannot be used
├── BackupError             a backup cannot be written, is none, or may not be restored
├── HostError               the kernel or libvirt refused; carries errno where there is one
│   ├── VmVanished          the VM went away: normal, never counted as a failure
│   └── DomainHangs         libvirt's calls about one domain do not return
├── JournalError            originals could not be made durable; nothing may be written
├── ManagerUnavailable      the manager did not answer the agent or the command line
│   └── ManagerRefused      it answered with an error; carries status and bad fields
├── RecordingError          a file of a host's history cannot be read or made
├── AlreadyRunning          another agent controls this host
└── UnsafeFile              others could read or exchange a file or folder that must be the service's alone
"""

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
    """The name is unknown or the password is wrong; which of the two is not told."""


class SignInThrottled(EquipoiseError):
    """Too many tries to sign in failed. ``retry_after_s`` is how long to wait, in seconds."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"too many failed tries to sign in: try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class TooManyRequests(EquipoiseError):
    """One source asks for more than its part. ``retry_after_s`` is how long to wait, in whole seconds."""

    def __init__(self, what: str, wait_s: float) -> None:
        self.retry_after_s = math.ceil(wait_s)
        super().__init__(f"{what}: try again in {self.retry_after_s} s")


class Busy(EquipoiseError):
    """As many as are allowed do this already: try again later."""


class ProtocolRefused(EquipoiseError):
    """An agent speaks another protocol than this manager."""


class DatabaseUnavailable(EquipoiseError):
    """The manager's database does not answer, is busy for too long, or lacks its tables."""


class BackupError(EquipoiseError):
    """A backup cannot be written, is none or damaged, or may not be restored; then nothing was changed."""


class HostError(EquipoiseError):
    """The kernel or libvirt refused an operation. ``errno`` is 0 where the source gives none."""

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class VmVanished(HostError):
    """The VM's process or cgroup is gone: it was stopped or migrated away."""


class DomainHangs(HostError):
    """No call of libvirt about that domain returns now, or none may be made as too many wait already."""


class JournalError(EquipoiseError):
    """The journal could not be written or read, so no setting may be changed."""


class ManagerUnavailable(EquipoiseError):
    """The manager could not be reached or refused the request."""


class ManagerRefused(ManagerUnavailable):
    """The manager answered with an error. ``status`` is that of HTTP; ``fields`` are bad ones with what is wrong."""

    def __init__(self, message: str, status: int, fields: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.fields = tuple(fields)


class RecordingError(EquipoiseError):
    """A recording is malformed or cut off, or there is nothing to record."""


class AlreadyRunning(EquipoiseError):
    """Another agent holds this host's lock."""


class UnsafeFile(EquipoiseError):
    """Others could read or exchange a file or folder that must be the service's alone; the text says what to do."""
