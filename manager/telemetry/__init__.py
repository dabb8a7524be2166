"""Response-time sources: what measures or receives the response times of applications on the agent's host."""
