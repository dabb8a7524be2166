"""The dashboard: pages of the manager for a browser, made from what the REST interface answers."""
