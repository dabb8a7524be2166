"""VMs: registration, application and last status."""

from __future__ import annotations

from operator import attrgetter

from flask import Response
from pydantic_core import to_json
from sqlalchemy.orm import Session

from manager.api.auth import OPERATOR, VIEWER, audited
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup, answer
from manager.api.merge import named, patched
from manager.api.paging import NAME, Page, next_cursor, read_cursor
from manager.api.queries import Conditions, NamePath, VmQuery
from manager.api.schemas.registration_shapes import MergePatch, VmOut
from manager.api.vm_texts import VmTexts, vm_json
from manager.model.fields import fields_of, json_fields
from manager.model.registration import VmIn, VmSpec
from manager.store.models import Json, VmRow
from manager.store.registrations import get
from manager.store.vm_lists import VmFilter, get_vm, page_of_vms
from manager.store.vms import adopt_vm, delete_vm, put_vm


def vms_api(context: ManagerContext) -> RouteGroup:
    """The routes of VMs."""
    api = RouteGroup("vms", "Registered libvirt domains, which need not exist.")
    database, texts = context.database, VmTexts()

    @api.at("GET /vms", VIEWER, Page[VmOut])
    def list_vms_(query: VmQuery) -> Response:
        """All VMs by name."""
        wanted = VmFilter(query.host, query.vm_class, query.application, search=query.search, serving=query.serving)
        with database.reading() as session:
            vms = page_of_vms(session, wanted, read_cursor(query, NAME), query.limit + 1)
            items = b",".join(texts.of(session, vms[: query.limit]))
        return answer(b'{"items":[%b],"next":%b}' % (items, to_json(next_cursor(query, vms, attrgetter("name")))))

    @api.at("GET /vms/<name>", VIEWER, VmOut)
    def get_vm_(path: NamePath) -> Response:
        """One VM."""
        with database.reading() as session:
            return _answer(session, get(session, VmRow, path.name))

    @api.at("PUT /vms/<name>", OPERATOR, VmOut, 200, 201)
    def put_vm_(path: NamePath, header: Conditions, body: VmIn) -> Response:
        """Register a VM; it need not exist yet."""
        with audited(context, "vm.put", VmRow, path.name, _described) as session:
            row, created = put_vm(session, named(VmSpec, path.name, body), context.now(), header.check)
            return _answer(session, row, created)

    @api.at("PATCH /vms/<name>", OPERATOR, VmOut)
    def patch_vm(path: NamePath, header: Conditions, body: MergePatch) -> Response:
        """Change fields of a VM."""
        with audited(context, "vm.patch", VmRow, path.name, _described) as session:
            wanted = patched(_body(get(session, VmRow, path.name)), body)
            row, _ = put_vm(session, named(VmSpec, path.name, wanted), context.now(), header.check)
            return _answer(session, row)

    @api.at("POST /vms/<name>/adopt", OPERATOR, VmOut)
    def adopt_vm_(path: NamePath) -> Response:
        """Adopt externally modified settings of a VM: its agent controls them again."""
        with audited(context, "vm.adopt", VmRow, path.name, _described) as session:
            return _answer(session, adopt_vm(session, path.name, context.now()))

    @api.at("DELETE /vms/<name>", OPERATOR)
    def delete_vm_(path: NamePath, header: Conditions) -> None:
        """Remove a VM; its agent restores its settings. A VM that serves an application cannot be removed."""
        with audited(context, "vm.delete", VmRow, path.name, _described) as session:
            delete_vm(session, path.name, header.check)

    return api


def _body(row: VmRow) -> VmIn:
    return VmIn(**fields_of(VmIn, row))


def _described(_session: Session, row: VmRow) -> Json:
    return json_fields(_body(row))


def _answer(session: Session, row: VmRow, created: bool = False) -> Response:
    return answer(vm_json(get_vm(session, row.name)), 201 if created else 200, row.etag)
