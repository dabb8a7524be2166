"""Batch VMs held to next to nothing while something is measured, and released whatever happens.

They are held through the manager, by their registered ``max_pcpus``. Another process releases them: it knows what they
had before the first is held, and begins when the pipe from the one that measures ends, which the kernel sees to however
that process ends. It has a session of its own, so that Ctrl-C does not reach it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

from manager.cli.options import Failure
from manager.errors import ManagerRefused, ManagerUnavailable
from manager.model.registration import LEAST_LIMIT_PCPUS
from manager.protocol.client import API, ManagerClient
from manager.terminal import say
from manager.tls import client_context

HELD_PCPUS = LEAST_LIMIT_PCPUS
"""What a held VM may use: the least that can be registered."""

_TRIES = 3600
_TRY_S = 1.0
_WAIT_S = 30.0


def hold(client: ManagerClient, vms: Mapping[str, float | None]) -> None:
    """Hold these VMs, by name with their registered ``max_pcpus``. Raises ManagerUnavailable."""
    for name in vms:
        client.request("PATCH", f"/vms/{name}", body={"max_pcpus": HELD_PCPUS})


def release(client: ManagerClient, vms: Mapping[str, float | None]) -> None:
    """Give VMs what they had, but for those that another user changed or removed. Raises ManagerUnavailable."""
    for name, former in vms.items():
        try:
            answer = client.request("GET", f"/vms/{name}")
        except ManagerRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            continue
        if answer.json()["max_pcpus"] == HELD_PCPUS and former != HELD_PCPUS:
            etag = answer.headers.get("ETag", "")
            client.request("PATCH", f"/vms/{name}", body={"max_pcpus": former}, headers={"If-Match": etag})


@contextmanager
def held(
    client: ManagerClient, reach: tuple[str, str, str], vms: Mapping[str, float | None], in_force: Callable[[], object]
) -> Iterator[None]:
    """Hold VMs in the block. ``reach``: URL of the manager, token, file of its authorities. ``in_force`` waits for it.

    Raises ManagerUnavailable, and Failure if they could not be released.
    """
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "manager.cli.batch_hold"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as guard:
        if guard.stdin is None or guard.stderr is None:
            raise AssertionError("it was started with pipes")
        guard.stdin.write(json.dumps({"reach": reach, "vms": vms}) + "\n")
        guard.stdin.flush()
        if guard.stderr.readline() != "ready\n":
            raise Failure("the process that releases batch VMs did not start, so none is held")
        try:
            hold(client, vms)
            in_force()
            yield
        finally:
            guard.stdin.close()
            try:
                status = guard.wait(_WAIT_S)
            except subprocess.TimeoutExpired:
                say(f"equipoise: batch VMs are not released yet; process {guard.pid} goes on trying", err=True)
                status = guard.wait()
            if (left := guard.stderr.read().strip()) or status:
                raise Failure(f"batch VMs are not released: {left or f'its process ended with status {status}'}")


def main() -> None:
    """Wait for the end of standard input, and release."""
    wanted = json.loads(sys.stdin.readline())
    say("ready", err=True)
    while sys.stdin.read(1):
        pass
    url, token, authorities = wanted["reach"]
    for attempt in range(1, _TRIES + 1):
        try:
            context = client_context(authorities) if url.startswith("https:") else None
            release(ManagerClient(url, token, authorities=context), wanted["vms"])
            return
        except ManagerUnavailable as error:
            if attempt == _TRIES:
                say(f"{error}; to release them: {remedy(wanted['vms'])}", err=True)
                return
            time.sleep(_TRY_S)


def remedy(vms: Mapping[str, float | None]) -> str:
    """The requests that release VMs."""
    return "; ".join(f'PATCH {API}/vms/{name} {{"max_pcpus": {json.dumps(former)}}}' for name, former in vms.items())


if __name__ == "__main__":
    main()
