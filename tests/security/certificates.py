"""Authorities and certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pem:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


def authority(folder: Path, name: str) -> Pem:
    """An authority of one's own."""
    made = Pem(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign", "-keyout", made.key,
        "-out", made.certificate,
    )  # fmt: skip
    return made


def certificate(folder: Path, by: Pem, names: str, days: int = 2) -> Pem:
    """A certificate for names such as ``IP:127.0.0.1``; with negative days one that has ended."""
    stem = f"{by.certificate.stem}-{abs(hash((names, days)))}"
    made, request, more = (
        Pem(folder / f"{stem}.pem", folder / f"{stem}.key"),
        folder / f"{stem}.csr",
        folder / f"{stem}.ext",
    )
    more.write_text(f"subjectAltName={names}\n")
    _openssl(
        "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=manager",
        "-keyout", made.key, "-out", request,
    )  # fmt: skip
    _openssl(
        "x509", "-req", "-in", request, "-CA", by.certificate, "-CAkey", by.key, "-CAcreateserial", "-days", str(days),
        "-extfile", more, "-out", made.certificate,
    )  # fmt: skip
    return made


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
