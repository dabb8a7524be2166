"""Jobs of batch VMs over the interface: what is refused, what agents are told, and how they fare."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import HOST, Api, moment, report, status, tick

JOB = {"deadline": moment(100), "cpu_seconds": 150.0, "max_slowdown": None, "alone_pcpus": None}
FARES = {
    "vm": "render",
    "got_pcpus": 0.5,
    "wants_pcpus": 2.0,
    "would_pcpus": 1.0,
    "slowdown": 2.0,
    "alone_by": "learnt",
    "alone_pcpus": 1.0,
    "state": "at_risk",
    "done_cpu_s": 20.0,
    "needed_pcpus": 1.3,
    "too_slow": False,
}


def running(api: Api, **changes: Any) -> None:
    """A batch VM of two vCPUs that reports."""
    api.ok("PUT", f"/hosts/{HOST}", {})
    api.ok("PUT", "/vms/render", {"class": "batch", "host": HOST})
    body = report(vms=[status("render", vcpus=2)], tick=tick(batch_vms=[FARES | changes]))
    api.ok("POST", f"/hosts/{HOST}/report", body, role="host")


@pytest.mark.parametrize(
    ("job", "field", "words"),
    [
        ({"deadline": moment(100)}, "job.cpu_seconds", "go together"),
        ({"cpu_seconds": 5}, "job.cpu_seconds", "go together"),
        ({"deadline": "tomorrow", "cpu_seconds": 5}, "job.deadline", "2026-01-31T12:00:00Z"),
        ({"deadline": moment(100), "cpu_seconds": 0}, "job.cpu_seconds", "more than 0"),
        ({"max_slowdown": 0.5}, "job.max_slowdown", "at least 1"),
        ({"alone_pcpus": 9000}, "job.alone_pcpus", "at most 8192"),
        ({"speed": 1}, "job.speed", "not a known field"),
        ({"deadline": moment(-1), "cpu_seconds": 5}, "job.deadline", "not after now"),
        ({"deadline": moment(100), "cpu_seconds": 201}, "job.cpu_seconds", "use at most 200"),
    ],
)
def test_a_bad_job_is_refused(api: Api, job: Any, field: str, words: str) -> None:
    running(api)
    [error] = api.refused(422, "PUT", "/vms/render", {"class": "batch", "host": HOST, "job": job})["errors"]
    assert (error["field"], words in error["message"]) == (field, True), error


def test_critical_vms_have_no_job(api: Api) -> None:
    [error] = api.refused(422, "PUT", "/vms/web", {"class": "critical", "job": {"max_slowdown": 2}})["errors"]
    assert error["field"] == "job"
    assert "only batch VMs" in error["message"]


def test_a_job_is_kept_and_told_to_the_agent(api: Api) -> None:
    running(api)
    assert api.ok("PUT", "/vms/render", {"class": "batch", "host": HOST, "job": JOB})["job"] == JOB
    [vm] = api.ok("GET", f"/hosts/{HOST}/assignment")["vms"]
    assert vm["job"] == JOB
    api.clock.now_s += 500
    assert api.ok("PATCH", "/vms/render", {"weight": 7})["job"] == JOB, "a job that stays is not judged again"
    assert api.ok("PATCH", "/vms/render", {"job": None})["job"] is None


def test_work_that_is_done_counts_when_the_deadline_moves(api: Api) -> None:
    running(api)
    api.ok("PATCH", "/vms/render", {"job": JOB | {"cpu_seconds": 200}})
    api.ok("PATCH", "/vms/render", {"job": {"deadline": moment(90)}})
    [error] = api.refused(422, "PATCH", "/vms/render", {"job": {"deadline": moment(89)}})["errors"]
    assert error["field"] == "job.cpu_seconds"


def test_how_a_batch_vm_fares_is_shown(api: Api) -> None:
    running(api)
    assert api.ok("GET", "/vms/render")["batch"] == FARES
    assert api.ok("GET", f"/hosts/{HOST}")["tick"]["batch_vms"] == [FARES]
    api.ok("PUT", "/vms/other", {"class": "batch"})
    assert api.ok("GET", "/vms/other")["batch"] is None
