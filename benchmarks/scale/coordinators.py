"""Stands in for all coordinators: as a program, it answers at the address of each coordinator's pod.

    python -m scale.coordinators SERVER CA CERTIFICATE KEY SOCKET

All pods' addresses are this machine's own in the sandbox that it runs in: which one was dialled says whose
coordinator is meant. It shows that job's certificate, asks for one that the job's authority has signed,
"trains" from the first roster on, and reports a step every now and then. The annotation `END` on its pod ends
the job well. Plans that it is given are told to the Unix socket SOCKET, one line of JSON each.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
import tempfile
import time
import traceback
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scale.client import client, follow

from gradsieve_operator import contract
from gradsieve_operator.cluster.api import Api, path

END = "example.com/end"
_KNOWN_SECONDS = 5.0
_SAMPLE_SECONDS = 10.0
_EVEN_SECONDS = 900.0
"""For so long a job's ranks are even, and then one of them is slow for as long; jobs differ in when."""

_MODES = ("Synchronous", "Balanced")


@dataclass
class Coordinator:
    """What one coordinator knows.

    Attributes:
        namespace: of the job.
        job: its name.
        uid: of the coordinator's pod.
        tls: its context, once somebody has dialled it.
        hosts: of the last roster.
        generation: of that.
        plan: the last one.
        ended: whether the program has ended.
    """

    namespace: str
    job: str
    uid: str
    tls: ssl.SSLContext | None = None
    hosts: list[str] = field(default_factory=list)
    generation: int = 0
    plan: dict[str, Any] = field(default_factory=dict)
    ended: bool = False
    planned_at: float = field(default_factory=time.time)

    def status(self) -> dict[str, Any]:
        """Return what ``GET /v1/status`` says."""
        state = contract.STATE_RUNNING if self.generation else contract.STATE_WAITING
        plan = self.plan.get("generation", 0)
        said = {
            "generation": self.generation,
            "state": contract.STATE_SUCCEEDED if self.ended else state,
            "registered": [{"host": host, "connected": True} for host in self.hosts],
            "missing": [],
            "missingSeconds": {},
            "message": "",
            "plan": {"generation": plan, "appliedGeneration": plan},
        }
        if not self.hosts:
            return said
        now = time.time()
        step, taken = divmod(now, _SAMPLE_SECONDS)
        ranks = [{"host": host, "stepSeconds": 0.1} for host in self.hosts]
        sample = {"step": int(step) % 10**8, "stepSeconds": 0.1, "waitSeconds": 0.01, "ranks": ranks}
        told = {"mode": self.plan.get("mode", _MODES[0]), "modes": list(_MODES)}
        telemetry = {"time": now - taken, **sample, **told}
        return {**said, "telemetry": telemetry, "telemetryAge": taken, "window": self._window(now)}

    def _window(self, now: float) -> dict[str, Any]:
        """Return what is measured of ranks that are even at times; shares by speed shorten steps."""
        slow = zlib.crc32(f"{self.namespace}/{self.job}".encode()) / 2**32 + now / (2 * _EVEN_SECONDS)
        slowest = 0.3 if slow % 1 < 0.5 else 0.1
        work = {"harmonic": 3 / (20 + 1 / slowest), "paced": 0.1, "slowest": slowest, "peak": slowest}
        work["paced"] = max(work["paced"], work["harmonic"])
        computing = work["harmonic"] if self.plan.get("mode") == "Balanced" else slowest
        return {
            "planGeneration": self.plan.get("generation", 0),
            "samples": min(int((now - self.planned_at) / 2), 32),
            "seconds": 64.0,
            "ranks": len(self.hosts),
            "stepSeconds": computing + 0.01,
            "stepDeviation": 0.001,
            "waitSeconds": 0.01,
            "delaySeconds": 0.01,
            "work": work,
            "slowestHost": self.hosts[-1],
            "slowestThrottledShare": 0.0,
            "slowestRanks": [],
            "hosts": [],
        }


class Coordinators:
    """All of them.

    Args:
        api: of an administrator.
        told: takes a line for each plan.
    """

    def __init__(self, api: Api, told: asyncio.StreamWriter) -> None:
        self._api, self._told = api, told
        self._known: dict[str, Coordinator] = {}
        self._changed = asyncio.Condition()

    async def watch(self) -> None:
        """Follow which pod has which address."""
        selector = f"{contract.LABEL_ROLE}={contract.ROLE_COORDINATOR}"
        async for event in follow(self._api, path("v1", "pods"), labelSelector=selector):
            pod = event["object"]
            address, uid = pod["status"].get("podIP"), pod["metadata"]["uid"]
            if not address:
                continue
            known = self._known.get(address)
            if event["type"] == "DELETED":
                if known is not None and known.uid == uid:
                    del self._known[address]
                continue
            if known is None or known.uid != uid:
                known = Coordinator(
                    pod["metadata"]["namespace"], pod["metadata"]["labels"][contract.LABEL_JOB], uid
                )
                async with self._changed:
                    self._known[address] = known
                    self._changed.notify_all()
            known.ended = END in (pod["metadata"].get("annotations") or {})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the calls of one connection."""
        # What is read before TLS begins would be lost to it.
        writer.transport.pause_reading()
        try:
            coordinator = await self._dialled(writer.get_extra_info("sockname")[0])
            if coordinator.tls is None:
                coordinator.tls = await self._context(coordinator)
            await writer.start_tls(coordinator.tls)
            while (request := await _request(reader)) is not None:
                answer = json.dumps(self._answer(coordinator, *request)).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(answer), answer)
                )
                await writer.drain()
        except (OSError, EOFError, TimeoutError, KeyError):
            traceback.print_exc()
        finally:
            writer.close()

    async def _dialled(self, address: str) -> Coordinator:
        async with asyncio.timeout(_KNOWN_SECONDS), self._changed:
            await self._changed.wait_for(lambda: address in self._known)
            return self._known[address]

    async def _context(self, coordinator: Coordinator) -> ssl.SSLContext:
        """Return the context with the job's certificate, as the pod has it mounted."""
        name = contract.coordinator_secret(coordinator.job)
        secret = await self._api.get(path("v1", "secrets", coordinator.namespace, name))
        data = {key: base64.b64decode(value) for key, value in secret["data"].items()}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=data[contract.CA_CERTIFICATE].decode())
        with tempfile.TemporaryDirectory() as folder:
            chain, key = Path(folder) / "chain", Path(folder) / "key"
            chain.write_bytes(data[contract.CERTIFICATE])
            key.write_bytes(data[contract.PRIVATE_KEY])
            context.load_cert_chain(chain, key)
        return context

    def _answer(self, coordinator: Coordinator, method: str, where: str, body: Any) -> dict[str, Any]:
        match method, where:
            case "PUT", contract.PATH_ROSTER:
                coordinator.generation = body["generation"]
                coordinator.hosts = [each["host"] for each in body["hosts"]]
            case "PUT", contract.PATH_PLAN:
                coordinator.plan, coordinator.planned_at = body, time.time()
                line = {"at": time.time(), "namespace": coordinator.namespace, "job": coordinator.job}
                line["mode"] = body.get("mode")
                line["density"] = body.get("densityPermille")
                self._told.write(json.dumps(line).encode() + b"\n")
        return coordinator.status()


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, Any] | None:
    """Return method, path and body of the next request; None when the connection has come to its end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    method, where, _ = head[0].split(" ")
    fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    length = int(fields.get("content-length", "0"))
    return method, where, json.loads(await reader.readexactly(length)) if length else None


async def main(server: str, ca: str, certificate: str, key: str, told: str) -> None:
    """Serve until killed."""
    async with client(server, Path(ca), Path(certificate), Path(key)) as api:
        _, writer = await asyncio.open_unix_connection(told)
        coordinators = Coordinators(api, writer)
        async with await asyncio.start_server(
            coordinators.serve, port=contract.COORDINATOR_PORT, backlog=1000
        ):
            await coordinators.watch()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
