"""Finds the installed policies through the entry-point group ``equipoise.policies``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from policies.base import Policy

GROUP = "equipoise.policies"
OURS = "equipoise"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class InstalledPolicy:
    """A policy and the distribution that ships it."""

    policy: Policy
    provided_by: str


def load_policies(
    points: Iterable[EntryPoint] | None = None, on_error: Callable[[str], None] = lambda _message: None
) -> Mapping[str, InstalledPolicy]:
    """All installed policies by name.

    One that cannot be imported, does not look like a policy, or repeats a name is left out and told to ``on_error``:
    a broken third-party package must not stop the host's control, nor replace a policy that comes with Equipoise.
    """
    policies: dict[str, InstalledPolicy] = {}
    for point in sorted(entry_points(group=GROUP) if points is None else points, key=_rank):
        origin = _origin(point)
        try:
            policy = point.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - third-party code may raise anything at import
            on_error(f"policy {point.name!r} of {origin} cannot be loaded: {type(error).__name__}: {error}")
            continue
        if not _is_policy(policy, point.name):
            on_error(
                f"policy {point.name!r} of {origin} is not a policy: it needs that name in lower-case letters, digits"
                " and dashes, a summary, and a decide function"
            )
        elif point.name in policies:
            on_error(f"policy {point.name!r} of {origin} is left out: {policies[point.name].provided_by} has that name")
        else:
            policies[point.name] = InstalledPolicy(policy, origin)
    return policies


def _origin(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown distribution"


def _rank(point: EntryPoint) -> tuple[str, bool, str]:
    return point.name, _origin(point) != OURS, point.value


def _is_policy(policy: object, name: str) -> bool:
    named = getattr(policy, "name", None) == name and _NAME.fullmatch(name) is not None
    return named and isinstance(getattr(policy, "summary", None), str) and callable(getattr(policy, "decide", None))
