"""Scripts, styles and pictures. Their addresses hold a mark of the content of all: browsers ask for each only once.

They alone are compressed. Pages and what the interface answers hold secrets beside what a reader's address may have put
there, and the length of such an answer, compressed, reveals its secrets (Gluck, Harris, Prado: "BREACH", 2013).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flask import Response, request
from markupsafe import Markup
from werkzeug.exceptions import NotFound

from manager.api.auth import OPEN, allow
from webui.site import web

FOLDER = Path(__file__).parent / "static"
_FOR_EVER = "public, max-age=31536000, immutable"
_LEAST_SAVED = 0.9  # what is hardly shorter when compressed is not worth it


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is answered; ``packed`` by gzip, None where that does not help."""

    content: bytes
    packed: bytes | None
    mimetype: str


def load(folder: Path) -> dict[str, Asset]:
    """All files of a folder, by path below it."""
    assets: dict[str, Asset] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            packed = gzip.compress(content, mtime=0)
            kind = mimetypes.guess_type(path.name)[0] or "text/plain"
            short = len(packed) < _LEAST_SAVED * len(content)
            assets[path.relative_to(folder).as_posix()] = Asset(content, packed if short else None, kind)
    return assets


def mark_of(assets: Mapping[str, Asset]) -> str:
    """Another one for another content or name of any: files name each other, and are to be of one version."""
    digest = hashlib.sha256()
    for name, asset in sorted(assets.items()):
        digest.update(f"{name}\0{len(asset.content)}\0".encode() + asset.content)
    return digest.hexdigest()[:16]


ASSETS = load(FOLDER)
_MARK = mark_of(ASSETS)


def inlined(asset: Asset) -> Markup:
    """What a page holds itself, so that it can be painted once it is there."""
    return Markup(asset.content.decode())  # noqa: S704 - a file of ours


def source_of(asset: Asset) -> str:
    """By what a Content-Security-Policy allows that alone (CSP Level 3, hash-source)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(asset.content).digest()).decode()}'"


@web.app_url_defaults
def _with_mark(endpoint: str, values: dict[str, Any]) -> None:
    """``url_for`` of a file needs only a ``filename``."""
    if endpoint == "web.static":
        values.setdefault("mark", _MARK)


@web.get("/static/<mark>/<path:filename>")
@allow(OPEN)
def static(mark: str, filename: str) -> Response:
    """A file. Where another version is asked for, as by a page from before an upgrade, it is not to be kept."""
    asset = ASSETS.get(filename)
    if asset is None:
        raise NotFound
    packed = asset.packed if request.accept_encodings.quality("gzip") > 0 else None
    response = Response(packed or asset.content, mimetype=asset.mimetype)
    response.headers["Cache-Control"] = _FOR_EVER if mark == _MARK else "no-store"
    if asset.packed is not None:
        response.vary.add("Accept-Encoding")
    if packed is not None:
        response.content_encoding = "gzip"
    return response
