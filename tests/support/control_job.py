"""A real coordinator and real agents, as processes on this machine or on hosts of their own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from datetime import timedelta
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from hosts_network import HUB_ADDRESS, HostsNetwork

import gradsieve
import gradsieve_hvd
from gradsieve_hvd.control.certificates import issue, parties
from gradsieve_hvd.control.contract import (
    CA_CERTIFICATE,
    CERTIFICATE,
    PRIVATE_KEY,
    ROLE_COORDINATOR,
    ROLE_OPERATOR,
)
from gradsieve_hvd.control.tls import client_context

MARKER = "GRADSIEVE_TEST_MARKER"
PACKAGES = [str(Path(package.__file__).parents[1]) for package in (gradsieve, gradsieve_hvd)]


class Program:
    """A process whose output goes to a file."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def lines(self, beginning: str) -> list[str]:
        return [line for line in self.text().splitlines() if line.startswith(beginning)]

    def wait(self, seconds: float = 90.0) -> int:
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {seconds} s:\n{self.text()}") from None

    def wait_for(self, text: str, seconds: float = 60.0, times: int = 1) -> None:
        until = time.monotonic() + seconds
        while self.text().count(text) < times:
            ended = self.process.poll() is not None and self.text().count(text) < times
            assert not ended, f"ended before it said {text!r}:\n{self.text()}"
            assert time.monotonic() < until, f"not {text!r} within {seconds} s:\n{self.text()}"
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class ControlJob:
    """Certificates, a coordinator and agents; whatever is left at the end is killed.

    Args:
        folder: for certificates, logs and temporary files; its path must be short.
        hosts: names of the hosts.
        network: hosts of their own, or None to run everything on this machine's loopback.
    """

    def __init__(self, folder: Path, hosts: tuple[str, ...], network: HostsNetwork | None = None) -> None:
        self.folder = folder
        self.certificates = folder / "tls"
        self.network = network
        self.marker = uuid.uuid4().hex
        self.address = "127.0.0.1" if network is None else HUB_ADDRESS
        self.port, self.read_only_port = free_ports(2)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.programs: list[Program] = []
        named = [word for host in hosts for word in ("--host", host)]
        made = self.gradsieve("certificates", str(self.certificates), "--coordinator", self.address, *named)
        assert made.wait() == 0, made.text()

    def gradsieve(
        self, *arguments: str, host: str | None = None, machine: str = "", **variables: str
    ) -> Program:
        """Start ``gradsieve``; with a network, on ``host`` or in the hub, else on a machine of a name."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADSIEVE_")}
        environment |= {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([*PACKAGES, os.environ.get("PYTHONPATH", "")]),
            "TMPDIR": str(self.temporary),
            "HOME": str(self.temporary),
            # Else every job compiles gradsieve's kernels, for half a minute.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
            MARKER: self.marker,
            # All hosts share this machine's cores, which Open MPI cannot know.
            "OMPI_MCA_mpi_yield_when_idle": "1",
            **variables,
        }
        command = [sys.executable, "-m", "gradsieve_hvd", *arguments]
        if machine or (self.network is None and host):
            command = [*on_a_machine_named(machine or host), *command]
        if self.network is not None:
            prefix, more = self.network.inside(host)
            command = [*prefix, shlex.join(command)] if host else [*prefix, *command]
            environment |= more
        log = self.folder / f"{len(self.programs)}-{arguments[0]}.log"
        program = Program(command, environment, log)
        self.programs.append(program)
        return program

    def agent(
        self, host: str, *options: str, slots: int = 1, party: str = "", machine: str = "", **variables: str
    ) -> Program:
        return self.gradsieve(
            "agent",
            *("--tls", str(self.certificates / (party or host)), "--host", host, "--slots", str(slots)),
            *("--coordinator", f"{self.address}:{self.port}", *options),
            host=host,
            machine=machine,
            **variables,
        )

    def coordinator(self, *options: str, **variables: str) -> Program:
        return self.gradsieve(
            "coordinator",
            *("--tls", str(self.certificates / "coordinator"), "--listen", f"{self.address}:{self.port}"),
            *("--read-only-listen", f"{self.address}:{self.read_only_port}", *options),
            **variables,
        )

    def renew_operator(self, seconds: float = 20.0) -> None:
        """Have a further authority sign the operator's certificate; returns when it is let in again."""
        everyone = parties([])
        _, operator = issue(everyone, lifetime=timedelta(hours=1))
        folder = self.certificates / ROLE_OPERATOR
        for name in (CERTIFICATE, PRIVATE_KEY):
            (folder / name).unlink()
        (folder / CERTIFICATE).write_bytes(operator.certificate)
        (folder / PRIVATE_KEY).write_bytes(operator.key)
        with (self.certificates / ROLE_COORDINATOR / CA_CERTIFICATE).open("ab") as file:
            file.write(operator.authority)
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError):
                self.call("GET", "/v1/status")
                return
            assert time.monotonic() < until, "the renewed operator is not let in"
            time.sleep(0.1)

    def call(
        self, method: str, path: str, body: Any = None, *, party: str = "operator", raw: bytes | None = None
    ) -> tuple[int, Any]:
        """Call the coordinator with the certificate of ``party``; returns HTTP status and JSON."""

        def do() -> tuple[int, Any]:
            context = client_context(self.certificates / party)
            connection = HTTPSConnection(self.address, self.port, context=context, timeout=30)
            try:
                data = json.dumps(body).encode() if raw is None and body is not None else raw
                connection.request(method, path, body=data)
                answer = connection.getresponse()
                text = answer.read()
                is_json = "json" in answer.headers.get("Content-Type", "")
                return answer.status, json.loads(text) if is_json else text.decode()
            finally:
                connection.close()

        return do() if self.network is None else self.network.from_hub(do)

    def look(self, path: str) -> str:
        """Get a page from the read-only port."""

        def do() -> str:
            with urlopen(f"http://{self.address}:{self.read_only_port}{path}", timeout=30) as answer:
                return answer.read().decode()

        return do() if self.network is None else self.network.from_hub(do)

    def status(self) -> dict[str, Any]:
        code, status = self.call("GET", "/v1/status")
        assert code == 200, status
        return status

    def wait_for(self, check: Any, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until the status passes ``check``: a function, or the name of a state."""
        passes = (lambda status: status["state"] == check) if isinstance(check, str) else check
        until, last = time.monotonic() + seconds, {}
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                last = self.status()
                if passes(last):
                    return last
            time.sleep(0.1)
        said = "\n".join(program.text() for program in self.programs)
        raise AssertionError(f"not within {seconds} s; last status {last}\n{said}")

    def left_over(self, patience: float = 10.0) -> list[str]:
        """Processes and temporary files that are still there when the patience is at its end."""
        until = time.monotonic() + patience
        while (left := self._marked()) and time.monotonic() < until:
            time.sleep(0.05)
        return [f"{pid} {command}" for pid, command in left.items()] + [
            str(path) for path in self.temporary.iterdir()
        ]

    def left_over_ranks(self, generation: str = "", host: str = "") -> list[int]:
        """Process ids of what agents run: of one generation or of all, on one host or on all."""
        wanted = [
            f"GRADSIEVE_{name}={value}".encode()
            for name, value in (("JOB_GENERATION", generation), ("HOST", host))
            if value
        ]
        found = []
        for pid in self._marked():
            with contextlib.suppress(OSError):
                variables = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
                is_rank = any(line.startswith(b"GRADSIEVE_JOB_GENERATION=") for line in variables)
                if is_rank and all(line in variables for line in wanted):
                    found.append(pid)
        return found

    def close(self) -> None:
        for pid in self._marked():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for program in self.programs:
            program.process.wait(timeout=30)

    def _marked(self) -> dict[int, str]:
        wanted = f"{MARKER}={self.marker}".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
        return found


def on_a_machine_named(name: str) -> list[str]:
    """What goes before a command so that its machine has this name, as MPI wants it of each host."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--uts", *user, "sh", "-c", 'hostname "$0" && exec "$@"', name]


def free_ports(count: int) -> list[int]:
    """Return ports that are free, and stay so until they are taken: the kernel gives these to nobody."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    for port in random.sample(range(20_000, lowest), 100):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports from 20000 to {lowest}")


def changed(folder: Path, change: str) -> dict[str, str]:
    """Return an environment in which Python does ``change`` before anything else."""
    (folder / "sitecustomize.py").write_text(change)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *PACKAGES, os.environ.get("PYTHONPATH", "")])}


def roster(generation: int, command: list[str], hosts: dict[str, str], slots: int = 1, **more: Any) -> dict:
    """A roster as the operator sends it; ``hosts``: name -> pod UID."""
    places = [{"host": host, "podUID": uid, "slots": slots} for host, uid in hosts.items()]
    return {
        "generation": generation,
        "command": command,
        "backend": "MPI",
        "env": {},
        "hosts": places,
        **more,
    }
