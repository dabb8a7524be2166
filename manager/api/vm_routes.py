"""VMs: what was registered, the application each serves, and its last status."""

from __future__ import annotations

from typing import Any

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from pydantic_core import to_json
from sqlalchemy.orm import Session

from manager.api.audit_routes import audited
from manager.api.auth import OPERATOR, VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import answers, blueprint, endpoint, no_content
from manager.api.merge import patched
from manager.api.pages import VmPage
from manager.api.paging import cut, name_place, read_cursor
from manager.api.queries import Conditions, NamePath, VmQuery
from manager.api.schemas.registration_shapes import MergePatch, VmOut
from manager.protocol.convert import vm_spec
from manager.protocol.registration_in import VmIn
from manager.store.models import Json, VmRow
from manager.store.registrations import get
from manager.store.vms import VmFilter, adopt_vm, delete_vm, get_vm, list_vms, put_vm


def vms_api(context: ManagerContext) -> APIBlueprint:
    """The routes of VMs."""
    api = blueprint("vms", "Registered libvirt domains, which need not exist.")
    database = context.database

    @api.get("/vms", responses=answers((200, VmPage)))
    @endpoint(VIEWER)
    def list_vms_(query: VmQuery) -> Response:
        """All VMs by name."""
        wanted = VmFilter(query.host, query.vm_class, query.application)
        with database.reading() as session:
            rows = list_vms(session, wanted, read_cursor(query, name_place), query.limit + 1)
        vms, following = cut(rows, query.limit, lambda vm: str(vm["name"]))
        items = b",".join(map(_vm_json, vms))
        return Response(b'{"items":[%b],"next":%b}' % (items, to_json(following)), mimetype="application/json")

    @api.get("/vms/<name>", responses=answers((200, VmOut)))
    @endpoint(VIEWER)
    def get_vm_(path: NamePath) -> Response:
        """One VM."""
        with database.reading() as session:
            etag = get(session, VmRow, path.name).etag
            vm = get_vm(session, path.name)
        return _vm_answer(vm, etag, 200)

    @api.put("/vms/<name>", responses=answers((200, VmOut), (201, VmOut)))
    @endpoint(OPERATOR)
    def put_vm_(path: NamePath, header: Conditions, body: VmIn) -> Response:
        """Register a VM; it need not exist yet."""
        with audited(context, "vm.put", VmRow, path.name, _described) as session:
            row, created = put_vm(session, vm_spec(path.name, body), context.now(), header.check)
            vm = get_vm(session, path.name)
        return _vm_answer(vm, row.etag, 201 if created else 200)

    @api.patch("/vms/<name>", responses=answers((200, VmOut)))
    @endpoint(OPERATOR)
    def patch_vm(path: NamePath, header: Conditions, body: MergePatch) -> Response:
        """Change single fields of a VM."""
        with audited(context, "vm.patch", VmRow, path.name, _described) as session:
            known = get_vm(session, path.name)
            current = VmIn(**{field: known[one.alias or field] for field, one in VmIn.model_fields.items()})
            row, _ = put_vm(session, vm_spec(path.name, patched(current, body)), context.now(), header.check)
            vm = get_vm(session, path.name)
        return _vm_answer(vm, row.etag, 200)

    @api.post("/vms/<name>/adopt", responses=answers((200, VmOut)))
    @endpoint(OPERATOR)
    def adopt_vm_(path: NamePath) -> Response:
        """Adopt externally modified settings of a VM: its agent controls them again."""
        with audited(context, "vm.adopt", VmRow, path.name, _described) as session:
            row = adopt_vm(session, path.name, context.now())
            vm = get_vm(session, path.name)
        return _vm_answer(vm, row.etag, 200)

    @api.delete("/vms/<name>", responses=answers((204, None)))
    @endpoint(OPERATOR)
    def delete_vm_(path: NamePath, header: Conditions) -> Response:
        """Remove a VM; its agent restores its settings. A VM that serves an application cannot be removed."""
        with audited(context, "vm.delete", VmRow, path.name, _described) as session:
            delete_vm(session, path.name, header.check)
        return no_content()

    return api


def _described(_session: Session, row: VmRow) -> Json:
    registered = VmIn.model_validate({field: getattr(row, field) for field in VmIn.model_fields})
    return registered.model_dump(mode="json", by_alias=True)


def _vm_answer(vm: dict[str, Any], etag: str, status: int) -> Response:
    response = Response(_vm_json(vm), status, mimetype="application/json")
    response.set_etag(etag)
    return response


def _vm_json(vm: dict[str, Any]) -> bytes:
    """A VmOut as JSON. The status is stored as JSON: to parse it only to write it again would take most of the time."""
    status = vm.pop("status")
    return b'%b,"status":%b}' % (to_json(vm)[:-1], b"null" if status is None else status.encode())
