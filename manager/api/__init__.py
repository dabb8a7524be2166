"""The REST interface: schemas, blueprints, authentication, one error shape (RFC 9457)."""
