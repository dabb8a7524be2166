"""A host's history in a file, and what another policy would have decided on it."""
