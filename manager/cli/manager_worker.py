"""One of several processes of `equipoise manager`, which starts it: see ``manager_workers``.

Its settings come by standard input, one line of JSON; the end of standard input means that the manager is gone.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from manager.api.manager_server import make_server
from manager.api.worker_share import LEAST_THREADS, WorkerShare
from manager.cli.admin_commands import open_store
from manager.cli.options import start_logging, stop_signal
from manager.errors import EquipoiseError
from manager.host.registry import boot_name
from manager.settings import Settings
from manager.terminal import say
from policies.installed import load_policies
from webui.dashboard import install_dashboard

READY, ALIVE, HANGS = "ready", "alive", "hangs "
"""Lines that it writes: once when it serves, then every second; or what hangs."""
WORD_S = 1.0

log = logging.getLogger(__name__)


def main() -> int:
    """Serve until SIGTERM. Arguments: number, count, folder, where to write, and the sockets, as file descriptors."""
    for ignored in (signal.SIGINT, signal.SIGHUP):  # these are for the parent
        signal.signal(ignored, signal.SIG_IGN)
    number, count, folder, words, *sockets = sys.argv[1:]
    given = json.loads(sys.stdin.readline())
    settings = Settings(given["values"], given["sources"])
    start_logging(settings)
    share = WorkerShare(int(number), int(count), tuple(map(int, sockets)), Path(folder))
    try:
        with stop_signal() as stop:
            threading.Thread(target=_stop_at_end, args=(stop,), name="manager", daemon=True).start()
            serve(settings, share, int(words), stop)
    except EquipoiseError as error:
        say(f"equipoise: {error}", err=True)
        return 1
    return 0


def serve(settings: Settings, share: WorkerShare, words: int, stop: threading.Event) -> None:
    """Serve until ``stop`` is set, and write to ``words`` how it goes. Raises EquipoiseError."""
    database = open_store(settings, share.of(settings.whole("api_threads"), LEAST_THREADS))
    server = make_server(
        settings, database, load_policies(on_error=log.error), install_dashboard, boot_name(), share=share
    )
    server.start()
    word = READY
    while True:
        server.measure()
        os.write(words, f"{word}\n".encode())
        if stop.wait(WORD_S):
            break
        problem = server.hanging()
        word = f"{HANGS}{problem}" if problem else ALIVE
    server.close()
    database.close()


def _stop_at_end(stop: threading.Event) -> None:
    while sys.stdin.read(1):
        pass
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
