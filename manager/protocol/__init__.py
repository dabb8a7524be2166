"""What agent and manager exchange, and the client that carries it: loads neither a web framework nor a database."""
