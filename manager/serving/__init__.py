"""The HTTP server of the manager and of an agent's pages: uvicorn behind a door, a WSGI application in threads."""
