"""Root shell of a test in an emulated machine: runs each line's script, answers with status and output.

Lines of JSON over a virtio serial port: ``{"id", "script", "stdin", "timeout_s"}``, answered in order of their ends by
``{"id", "status", "stdout", "stderr"}``; status 124 when the script took too long. Runs on each Debian's own Python,
without any package.
"""

import json
import subprocess
import sys
import threading
import time

PORT = "/dev/virtio-ports/equipoise.shell"
lock = threading.Lock()


def answer(port, request):
    """Run one script."""
    try:
        done = subprocess.run(
            ["/bin/bash", "-c", request["script"]],
            input=request["stdin"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=request["timeout_s"],
            check=False,
        )
        told = {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    except subprocess.TimeoutExpired as error:
        partial = [(text or b"").decode(errors="replace") for text in (error.stdout, error.stderr)]
        told = {"status": 124, "stdout": partial[0], "stderr": partial[1]}
    with lock:
        rest = json.dumps({"id": request["id"], **told}).encode() + b"\n"
        while rest:
            rest = rest[port.write(rest) :]


def main():
    """Answer until the machine ends."""
    with open(PORT, "r+b", buffering=0) as port:
        buffer = b""
        while True:
            part = port.read(65536)
            if not part:  # nobody is connected
                time.sleep(0.05)
                continue
            *lines, buffer = (buffer + part).split(b"\n")
            for line in lines:
                threading.Thread(target=answer, args=(port, json.loads(line)), daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
