"""The manager's database: tables, sessions, migrations, and small repositories of functions that take a session."""
