"""Parts of answers that are read and written once, and are then known by what tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)


class KeptTexts(Generic[_Key]):
    """JSON by key, of which a key always has the same. Thread-safe."""

    def __init__(self, most: int) -> None:
        """``most``: so many are kept at least while nobody asks for more; then all others are forgotten."""
        self._most = most
        self._known: Mapping[_Key, bytes] = {}

    def of(
        self, keys: Collection[_Key], read: Callable[[Collection[_Key]], Mapping[_Key, bytes]]
    ) -> Mapping[_Key, bytes]:
        """At least the texts of these keys; those that are not known are ``read``."""
        known = self._known
        unknown = {key for key in keys if key not in known}
        if unknown:
            known = {**known, **read(unknown)}
            self._known = known if len(known) <= self._most else {key: known[key] for key in keys}
        return known
