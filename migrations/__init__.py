"""Alembic migrations of the manager's database. They are packaged, and run by ``manager.store.database``."""
