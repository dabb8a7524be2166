"""TLS contexts of the manager and its clients."""

from __future__ import annotations

import ssl
from pathlib import Path

from manager.errors import SettingsError


def server_context(certificate: str, key: str) -> ssl.SSLContext | None:
    """For a server with PEM files of a certificate chain and its key; TLS 1.2 or newer. None without a certificate.

    Raises SettingsError naming the file that cannot be used.
    """
    if not certificate:
        if key:
            raise SettingsError("setting tls_key is of no use without tls_certificate")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, certificate, key)
    return context


def renew_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Have a server's context use what its files hold now, for connections that begin from now on.

    Raises SettingsError naming the file that cannot be used; then all is as it was.
    """
    server_context(certificate, key)  # tried apart: a context may keep half of what it refuses
    _load(context, certificate, key)


def _load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    for name, file in (("tls_certificate", certificate), ("tls_key", key or certificate)):
        _readable(name, file)
    try:
        # An empty passphrase, so that OpenSSL does not ask for one on the terminal.
        context.load_cert_chain(certificate, key or None, password=lambda: "")
    except (OSError, ValueError) as error:
        files = certificate + (f" and tls_key {key}" if key else "")
        raise SettingsError(f"setting tls_certificate: {files} cannot be used: {_reason(error)}") from error


def client_context(authorities: str) -> ssl.SSLContext:
    """For a client that trusts the authorities of a PEM file, or of the system if empty. Raises SettingsError."""
    if authorities:
        _readable("manager_ca_file", authorities)
    try:
        return ssl.create_default_context(cafile=authorities or None)
    except ssl.SSLError as error:
        raise SettingsError(f"setting manager_ca_file: {authorities} holds no certificate: {_reason(error)}") from error


def _readable(name: str, file: str) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise SettingsError(f"setting {name} = {file!r} cannot be read: {error.strerror}") from error


def _reason(error: Exception) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else "") or str(error)
