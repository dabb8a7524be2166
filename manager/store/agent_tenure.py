"""Which agent serves a host, from reports and operators' choices."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from manager.control.tenure_rules import ReportOrigin, Tenure, Who, judge
from manager.errors import Conflict
from manager.model.records import Severity
from manager.store.event_records import store_events
from manager.store.models import HostRow
from manager.store.registrations import get, touch
from manager.store.silent_hosts import host_event

SECOND, CLONED, REPLACED = "second-agent", "agent-cloned", "agent-replaced"
_AGAIN = timedelta(minutes=10)
_ANOTHER = timedelta(minutes=1)
_SHOWN = _AGAIN + _ANOTHER


def tenure_of(host: HostRow) -> Tenure:
    """The agent that serves a host, its former boot, and its rival."""
    holder = Who(host.agent_instance, host.agent_boot or "") if host.agent_instance else None
    rival = Who(host.rival_instance, host.rival_boot or "") if host.rival_instance else None
    return Tenure(holder, host.former_boot, rival)


def is_live(host: HostRow, now: datetime, silent: timedelta) -> bool:
    """Whether its agent reported within ``silent``, also if the clock was set, or nobody has noticed yet that not.

    Time without a manager is no silence: of two agents the second may be the first to come back.
    """
    return host.last_seen_at is not None and (not host.silent or abs(now - host.last_seen_at) <= silent)


def refusal(host: HostRow, who: Who | None, now: datetime, silent: timedelta) -> str:
    """Why an agent is refused, and what to do; empty: it is not."""
    if who is None:
        return ""
    tenure = tenure_of(host)
    verdict, _ = judge(tenure, who, live=is_live(host, now, silent))
    return _refusal(host, who, now) if verdict is ReportOrigin.RIVAL else ""


def note_agent(session: Session, host: HostRow, who: Who | None, now: datetime, silent: timedelta) -> str:
    """Record the agent that reports; answer and events as ``refusal``. ``who`` None: an agent without an id."""
    if who is None:
        return ""
    before = tenure_of(host)
    verdict, after = judge(before, who, live=is_live(host, now, silent))
    reason = _refusal(host, who, now)
    if verdict is ReportOrigin.RIVAL:
        pause = _AGAIN if before.rival == who else _ANOTHER
        if host.rival_at is None or abs(now - host.rival_at) >= pause:
            host.rival_at = now
            store_events(session, [host_event(host.name, now, Severity.ERROR, SECOND, reason)])
    elif verdict is ReportOrigin.RETURNED:
        host.rival_at = now
        text = (
            f"two machines serve {host.name} with copies of one state directory: boots {who.boot} and {host.agent_boot}"
            " alternate; the earlier one is served. Remove the agent's state directory on the copy, and give it a"
            " host_name"
        )
        store_events(session, [host_event(host.name, now, Severity.ERROR, CLONED, text)])
    elif verdict is ReportOrigin.TAKEN_OVER and before.holder is not None:
        text = f"agent {who.instance} serves {host.name} after {before.holder.instance}, which is silent"
        store_events(session, [host_event(host.name, now, Severity.WARNING, REPLACED, text)])
    if after != before:
        _set_tenure(host, after)
    return reason if verdict is ReportOrigin.RIVAL else ""


def rival_of(instance: str | None, at: datetime | None, now: datetime) -> str | None:
    """The id of a second agent that was refused in the last minutes, None where there is none.

    From a host's row: the id of the last one, and the time of the last event about it. While it reports, an event
    follows at least every ``_AGAIN``: without one for longer it has stopped.
    """
    return instance if at is not None and abs(now - at) <= _SHOWN else None


def replace_agent(session: Session, name: str, now: datetime) -> HostRow:
    """Let the agent that was refused last serve the host instead of the current one. Raises NotFound, Conflict."""
    host = get(session, HostRow, name)
    tenure = tenure_of(host)
    if tenure.rival is None:
        raise Conflict(f"no other agent has asked to serve host {name!r}: there is none to replace its agent with")
    _set_tenure(host, Tenure(tenure.rival, None, tenure.holder))
    touch(host, now)
    text = f"an operator let agent {tenure.rival.instance} serve {name}"
    store_events(session, [host_event(name, now, Severity.WARNING, REPLACED, text)])
    return host


def forget_agent(session: Session, host: HostRow) -> None:
    """No agent serves the host any more; the next one to report will."""
    _set_tenure(host, Tenure())
    session.flush()


def _set_tenure(host: HostRow, tenure: Tenure) -> None:
    holder, rival = tenure.holder, tenure.rival
    host.agent_instance, host.agent_boot = (holder.instance, holder.boot) if holder else (None, None)
    host.rival_instance, host.rival_boot = (rival.instance, rival.boot) if rival else (None, None)
    host.former_boot = tenure.former_boot


def _refusal(host: HostRow, who: Who, now: datetime) -> str:
    ago_s = (now - host.last_seen_at).total_seconds() if host.last_seen_at else 0.0
    return (
        f"host {host.name} is served by agent {host.agent_instance} (boot {host.agent_boot}), which reported"
        f" {ago_s:.0f} s ago, so agent {who.instance} (boot {who.boot}) is refused: give its machine a different"
        f" host_name, stop one of the two, or let this one serve the host with `equipoise host replace {host.name}`"
    )
