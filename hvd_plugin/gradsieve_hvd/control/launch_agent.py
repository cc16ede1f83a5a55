"""Launch agent: ``mpirun`` calls it in place of ``ssh HOST COMMAND...``; the host's agent runs the command.

Runs as a plain script of the standard library alone (``python -I -S launch_agent.py HOST COMMAND...``), once
per host of a job: importing more would cost seconds.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import sys

SOCKET_VARIABLE = "GRADSIEVE_LAUNCH_SOCKET"
"""Path of the coordinator's socket."""

PREFIX = "agent-"
"""Goes before a host's name for ``mpirun``, which would start ranks without an agent on a host that it takes
for its own."""


def main(arguments: list[str]) -> int:
    """Have the host named first run the rest, pass its output on, and return its exit status."""
    host, *command = arguments
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        print("gradsieve launch-agent: only `gradsieve coordinator` can use it", file=sys.stderr)
        return 2
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.connect(path)
        request = {"host": host.removeprefix(PREFIX), "command": " ".join(command)}
        channel.sendall(json.dumps(request).encode() + b"\n")
        for line in channel.makefile("rb"):
            message = json.loads(line)
            if "status" in message:
                return int(message["status"])
            stream = sys.stdout if message["stream"] == "stdout" else sys.stderr
            stream.buffer.write(base64.b64decode(message["data"]))
            stream.buffer.flush()
    print(f"gradsieve launch-agent: the coordinator has gone, and {host} with it", file=sys.stderr)
    return 255


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
