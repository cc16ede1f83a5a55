"""Hosts of their own for a test's processes: network namespaces behind links, as `run --link` makes.

Run as a program with a number of hosts, it becomes the hub, prints where the namespaces are, and keeps them
until its standard input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

HUB_ADDRESS = "10.99.255.1"


class HostsNetwork:
    """Hosts h0, h1, … around a hub, and the way into them; needs root.

    Args:
        hosts: how many.
    """

    def __init__(self, hosts: int) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, __file__, str(hosts)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        said = self._keeper.stdout.readline()
        if not said:
            self.close()
            raise OSError("no network of hosts could be made")
        self._namespaces = json.loads(said)
        self._in_hub = ThreadPoolExecutor(1, initializer=self._enter_hub)

    def inside(self, host: str | None) -> tuple[list[str], dict[str, str]]:
        """What goes before a command that is to run on ``host`` (None: the hub), and into its environment."""
        from gradsieve_hvd.launcher import agent

        mount = f"--mount=/proc/{self._keeper.pid}/ns/mnt"
        if host is None:
            return ["nsenter", mount, f"--net=/proc/{self._keeper.pid}/ns/net"], {}
        enter = [sys.executable, "-I", "-S", agent.__file__, host, "exec"]
        return ["nsenter", mount, *enter], {agent.HOSTS_VARIABLE: json.dumps(self._namespaces)}

    def from_hub(self, call: Callable[[], Any]) -> Any:
        """Call something in a thread that sees the hub's network."""
        return self._in_hub.submit(call).result(timeout=60)

    def set_link(self, host: int, *, up: bool) -> None:
        """Cut a host off, or reconnect it."""

        def change() -> None:
            from pyroute2 import IPRoute

            with IPRoute() as hub:
                hub.link("set", index=hub.link_lookup(ifname=f"p{host}")[0], state="up" if up else "down")

        self.from_hub(change)

    def close(self) -> None:
        """Let go of the hosts."""
        self._keeper.stdin.close()
        self._keeper.wait(timeout=30)
        self._keeper.stdout.close()

    def _enter_hub(self) -> None:
        from gradsieve_hvd.launcher import linux

        descriptor = os.open(f"/proc/{self._keeper.pid}/ns/net", os.O_RDONLY)
        linux.set_namespace(descriptor, linux.CLONE_NEWNET)
        os.close(descriptor)


def _keep(hosts: int) -> None:
    from gradsieve_hvd.launcher.enter import enter_private_namespaces

    enter_private_namespaces()
    from gradsieve_hvd.launcher.network import EmulatedLink

    print(json.dumps(EmulatedLink([None] * hosts).namespaces()), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _keep(int(sys.argv[1]))
