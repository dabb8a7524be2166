"""Schemas of the REST interface alone. Unknown fields are refused."""
