"""What `equipoise doctor` says of the agent's reports: items that were set aside, and another name of the host."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from manager.host.doctor.check import CheckResult, degraded, warning, works
from manager.loop.instance import INSTANCE_FILE

_MOST_REASONS = 3
_REASONS = "SELECT why, count(*) FROM set_aside GROUP BY why ORDER BY max(seq) DESC"
_FORGET = "DELETE FROM set_aside"


def look_at_reports(outbox: Path, host: str) -> CheckResult:
    """What waits in the agent's outbox that no manager takes. Read without opening it as the agent does."""
    if not outbox.exists():
        return works(f"there is no {outbox}: nothing was ever reported")
    try:
        with closing(sqlite3.connect(f"{outbox.absolute().as_uri()}?mode=ro", uri=True, timeout=2)) as database:
            reasons = database.execute(_REASONS).fetchall()
            former = [name for [name] in database.execute("SELECT host FROM about") if name != host]
    except sqlite3.Error as error:
        return degraded(
            f"{outbox} cannot be read: {error}",
            "restart the agent: it sets the file aside and goes on with what can be read of it",
        )
    if former:
        return warning(
            f"host_name was {former[0]} when the agent started last, and is {host} now",
            f"set host_name back, or join as {host} with `equipoise agent join --force`, and restart the agent",
        )
    if reasons:
        named = "; ".join(f"{count}: {why}" for why, count in reasons[:_MOST_REASONS])
        more = f"; and {len(reasons) - _MOST_REASONS} more reasons" if len(reasons) > _MOST_REASONS else ""
        return warning(
            f"{sum(count for _, count in reasons)} items were not accepted and are set aside: {named}{more}",
            f"follow the reasons; then forget the items with `sqlite3 {outbox} '{_FORGET}'`",
        )
    return works("every item of a report was accepted")


def second_agent(host: dict[str, object], state_dir: Path) -> CheckResult | None:
    """What is to be said where another agent reports under this host's name, as the manager shows the host."""
    serving, refused = host.get("agent_instance"), host.get("rival_instance")
    if not refused:
        return None
    try:
        own = (state_dir / INSTANCE_FILE).read_text(errors="replace").strip()
    except OSError:
        own = ""
    here = {serving: "; this machine's is the first", refused: "; this machine's is the refused one"}.get(own, "")
    return degraded(
        f"two agents report as host {host['name']}: {serving} serves it, {refused} is refused{here}",
        "give one of the two machines another host_name, or stop its agent; `equipoise host replace"
        f" {host['name']}` lets the refused one serve the host",
    )
