"""What Alembic runs for every command.

The manager hands over a connection in whose transaction everything happens. A developer's command line
(``alembic -c migrations/alembic.ini revision --autogenerate -m "..."``) has the URL in that file instead.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, create_engine

from manager.store import (  # noqa: F401 - their tables are part of the metadata
    access_models,
    host_models,
    interference_models,
    pack_models,
    progress_models,
)
from manager.store.day_partitions import partition_names
from manager.store.models import Base


def _run(connection: Connection) -> None:
    parts = partition_names(connection)
    # SQLite can hardly alter a table: batch mode rebuilds it.
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        include_name=lambda name, kind, _parents: kind != "table" or name not in parts,
    )
    with context.begin_transaction():
        context.run_migrations()


handed_over = context.config.attributes.get("connection")
if handed_over is not None:
    _run(handed_over)
else:
    with create_engine(context.config.get_main_option("sqlalchemy.url", "")).connect() as own:
        _run(own)
