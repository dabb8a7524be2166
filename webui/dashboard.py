"""The dashboard as a part of the manager's WSGI application."""

from __future__ import annotations

from flask import Blueprint, Flask

from manager.api.context import ManagerContext
from manager.store.change_feed import Changes
from webui import site
from webui.application_pages import add_application
from webui.audit_pages import add_audit
from webui.control_pages import add_control
from webui.decision_pages import add_decisions
from webui.editing_pages import add_editing
from webui.first_pages import add_first
from webui.fleet_pages import add_fleet
from webui.host_pages import add_hosts
from webui.inside import Inside
from webui.inventory_pages import add_registered
from webui.live_feed import add_feed
from webui.people_pages import add_people
from webui.report_pages import add_report
from webui.sign_in_pages import add_account, add_sign_in
from webui.site import Site
from webui.what_if_pages import add_what_if


def install_dashboard(app: Flask, context: ManagerContext, changes: Changes) -> None:
    """Add the pages to an application that already serves the interface."""
    app.jinja_env.finalize = site.shown
    web = Blueprint("web", __name__, template_folder="templates")
    site.install(web, context.slot_s)
    pages = Site(Inside(app.wsgi_app), context.clock, context.slot_s, context.stale_s)
    add_feed(web, changes)
    add_sign_in(web, context)
    add_account(web, pages, context)
    for add in (
        add_fleet,
        add_application,
        add_report,
        add_hosts,
        add_decisions,
        add_what_if,
        add_registered,
        add_editing,
        add_control,
        add_first,
        add_people,
        add_audit,
    ):
        add(web, pages)
    app.register_blueprint(web)
