"""Shapes that only the REST interface has, for people and their tools. Unknown fields are refused everywhere."""
