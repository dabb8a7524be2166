"""May a VM come to a host? The question as a form, and the answer with its reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from flask import Response, request

from manager.api.auth import VIEWER, allow
from manager.api.schemas.admission_shapes import AdmissionIn
from webui import rest
from webui.editing_pages import policies, suggestions
from webui.filled import Sheet
from webui.forms import Look, form_page, parts_of
from webui.rest import Json
from webui.site import web

_LABELS: Mapping[str, str] = {
    "vm": "Registered VM",
    "vcpus": "vCPUs",
    "demand_pcpus": "Demand (pCPUs)",
    "like": "Serves requests as",
    "max_batch_loss": "Batch VMs may lose (part of their CPU time)",
    "minutes": "History (minutes)",
}


@web.get("/hosts/<name>/admission")
@allow(VIEWER)
def admission(name: str) -> Response:
    """The form, and the answer to what a query asks; 404 where there is no such host. Nothing is changed."""
    path, sheet = rest.at("hosts", name), Sheet(name)
    host = rest.get(path)
    if request.args:
        sheet.submit(AdmissionIn, request.args, "POST", f"{path}/admission")
    serving = rest.every("/vms", host=name, serving=True)
    look = Look(
        choices={"policy": policies()},
        suggested={
            "vm": rest.suggested("vms", elsewhere=name),
            "like": list(services_like(rest.every("/applications", host=name), serving, name)),
        },
        listed={"vm": suggestions("vms", elsewhere=name)},
        labels=_LABELS,
    )
    parts = parts_of(AdmissionIn, sheet.body, sheet.errors, look)
    return form_page("admission.html", sheet, parts, host=host, answer=sheet.answer and sheet.answer.body)


def services_like(applications: Iterable[Json], vms: Iterable[Json], host: str) -> Iterator[str]:
    """The applications whose VMs run on a host, with the tier where there are several: a VM may serve as these do."""
    here = {vm["name"] for vm in vms if vm["status_host"] == host}
    for application in applications:
        tiers = application["tiers"]
        serving = [tier["name"] for tier in tiers if not here.isdisjoint(tier["vms"])]
        if serving and len(tiers) == 1:
            yield application["name"]
        else:
            yield from (f"{application['name']}/{tier}" for tier in serving)
