"""The part of a coordinator that ranks talk to, over real TLS: it hands out a plan and keeps samples."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from gradsieve_hvd.control import contract
from gradsieve_hvd.control.certificates import issue, parties


def make_certificates(folder: Path, host: str = "workers-0") -> None:
    """Certificates for ``folder/coordinator`` and ``folder/worker``."""
    everyone = parties([(host, [])])
    for party, credentials in zip(everyone, issue(everyone, lifetime=timedelta(hours=1)), strict=True):
        credentials.write(folder / party.role)


class SmallCoordinator:
    """A context manager. plan: what is handed out. samples: the telemetry so far. port: 0 takes any."""

    def __init__(self, tls: Path, plan: Any = None, port: int = 0) -> None:
        self.plan = plan or {"generation": 0}
        self.samples: list[dict[str, Any]] = []
        coordinator = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(coordinator.plan if self.path == contract.PLAN_PATH else None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == contract.TELEMETRY_PATH:
                    coordinator.samples.append(json.loads(body))
                self._answer({} if self.path == contract.TELEMETRY_PATH else None)

            def _answer(self, content: Any) -> None:
                body = json.dumps(content).encode()
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / contract.CERTIFICATE, tls / contract.PRIVATE_KEY)
        context.load_verify_locations(tls / contract.CA_CERTIFICATE)
        context.verify_mode = ssl.CERT_REQUIRED
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] - a caller that goes away
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]

    def __enter__(self) -> Self:
        self._connections: list[Any] = []
        take = self._server.get_request

        def remembered() -> Any:
            connection, address = take()
            self._connections.append(connection)
            return connection, address

        self._server.get_request = remembered  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Be gone, with all connections; twice is as once."""
        self._server.shutdown()
        self._server.server_close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def wait_for(self, holds: Callable[[dict[str, Any]], bool], seconds: float = 90.0) -> dict[str, Any]:
        """Return the first sample for which this holds."""
        until = time.monotonic() + seconds
        seen = 0
        while time.monotonic() < until:
            for sample in self.samples[seen:]:
                seen += 1
                if holds(sample):
                    return sample
            time.sleep(0.05)
        raise AssertionError(f"no such sample within {seconds} s; the last ones: {self.samples[-3:]}")
