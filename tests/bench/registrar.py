"""Somebody who registers all day, as where VMs come and go."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle

import httpx


@contextmanager
def visitors(client: httpx.Client, hosts: Sequence[str], per_s: float) -> Iterator[None]:
    """A VM comes to one host after the other, and goes again: each is a registration, of which there are ``per_s``.

    At most as many as the manager answers, one after the other. Raises HTTPError in the end where one was refused.
    """
    ended = threading.Event()

    def register() -> None:
        for host in cycle(hosts):
            path = f"/vms/{host}-visitor"
            for method, body in (("PUT", {"class": "batch", "host": host}), ("DELETE", None)):
                if ended.wait(1 / per_s):
                    return
                client.request(method, path, json=body).raise_for_status()

    with ThreadPoolExecutor(1) as pool:
        registering = pool.submit(register) if per_s else None
        try:
            yield
        finally:
            ended.set()
        if registering is not None:
            registering.result()
