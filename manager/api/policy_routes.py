"""The installed policies."""

from __future__ import annotations

from flask import Response
from flask_openapi3.blueprint import APIBlueprint

from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.pages import PolicyPage
from manager.api.paging import cut, name_place, read_cursor
from manager.api.queries import NamePath, PageQuery
from manager.api.schemas.service_shapes import PolicyOut
from manager.errors import NotFound


def policies_api(context: ManagerContext) -> APIBlueprint:
    """The routes of policies."""
    api = blueprint("policies", "How weights are decided; a host uses one of them.")
    known = [
        PolicyOut(name=name, summary=installed.policy.summary, provided_by=installed.provided_by)
        for name, installed in sorted(context.policies.items())
    ]

    @api.get("/policies", responses=answers((200, PolicyPage)))
    @endpoint(VIEWER)
    def list_policies(query: PageQuery) -> Response:
        """All installed policies by name."""
        after = read_cursor(query, name_place)
        rows = [policy for policy in known if after is None or policy.name > after]
        items, following = cut(rows, query.limit, lambda policy: policy.name)
        return answer(PolicyPage(items=list(items), next=following))

    @api.get("/policies/<name>", responses=answers((200, PolicyOut)))
    @endpoint(VIEWER)
    def get_policy(path: NamePath) -> Response:
        """One policy."""
        for policy in known:
            if policy.name == path.name:
                return answer(policy)
        raise NotFound(f"there is no policy named {path.name!r}")

    return api
