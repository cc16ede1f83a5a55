"""A proxy between the operator and the API server that kills the operator at writes of the test's choice."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from kubernetes.config import new_client_from_config
from operator_process import ACCOUNT, OperatorProcess

WRITES = frozenset({"POST", "PATCH", "PUT", "DELETE"})
_DEADLINE_SECONDS = 400
_CHUNK = 1 << 16
_OWN_HEADERS = frozenset({"authorization", "connection", "content-length", "host", "transfer-encoding"})


class Cut(Enum):
    """When the operator dies."""

    BEFORE = "the request never arrives"
    AFTER = "the answer never arrives"


@dataclass(frozen=True)
class Write:
    """One write of the operator.

    Attributes:
        method: of the request.
        path: of the request, without its query.
        body: what was sent; empty if nothing.
        at: when it came, of the monotonic clock.
    """

    method: str
    path: str
    body: dict[str, Any]
    at: float

    @property
    def name(self) -> str:
        """Name of the object that is written; of an event, the one that it is about."""
        if self.method == "POST":
            return str(self.body["involvedObject"]["name"])
        return self.path.removesuffix("/status").rpartition("/")[2]


class CuttingProxy:
    """Forwards everything, and asks at each write whether the operator is to die there.

    Args:
        cluster: whose API server it is for.
        operator: the process; started through here, and again after each death.
        folder: takes its kubeconfig.

    Attributes:
        writes: everything that the API server was given, in order.
        deaths: the writes at which the operator was killed, and how.
        choose: says whether to kill; settable at any time.
        life: counts the operators.
    """

    def __init__(self, cluster: Any, operator: OperatorProcess, folder: Path) -> None:
        # It may do what the operator may.
        self._configuration = new_client_from_config(str(cluster.kubeconfig_of(ACCOUNT))).configuration
        self._tls = ssl.create_default_context(cafile=self._configuration.ssl_ca_cert)
        self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self._configuration.cert_file:
            self._tls.load_cert_chain(self._configuration.cert_file, self._configuration.key_file)
        self._operator = operator
        self._lock = threading.Lock()
        self.life = 0
        self.writes: list[Write] = []
        self.deaths: list[tuple[Write, Cut]] = []
        self.choose: Callable[[Write], Cut | None] = lambda _: None
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self.kubeconfig = folder / "through-the-proxy"
        self.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(self._server.server_port)))

    @contextmanager
    def running(self) -> Iterator[CuttingProxy]:
        """Serve, with the operator behind it; afterwards the operator runs without it."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        self._operator.kill()
        self._operator.start(self.kubeconfig)
        try:
            yield self
        finally:
            with self._lock:
                self.choose = lambda _: None
                self._operator.kill()
            self._server.shutdown()
            self._server.server_close()
            thread.join()
            self._operator.start()

    def quiet(self, seconds: float) -> bool:
        """Whether nothing was written for so long."""
        return bool(self.writes) and time.monotonic() - self.writes[-1].at > seconds

    def forward(self, request: BaseHTTPRequestHandler, life: int) -> None:
        """Carry one request of the operator of ``life`` to the API server, or let it die of it."""
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if request.command in WRITES:
            content = json.loads(body) if body else {}
            write = Write(request.command, urlsplit(request.path).path, content, time.monotonic())
            with self._lock:
                if life != self.life:
                    raise ConnectionAbortedError("sent by an operator that is dead by now")
                cut = self.choose(write)
                if cut is Cut.BEFORE:
                    self._kill(write, cut)
                else:
                    # With the lock: what is in flight when the operator dies has either arrived or not.
                    self.writes.append(write)
                    with closing(self._connect()) as connection:
                        status, headers, said = self._call(connection, request, body)
                    if cut is Cut.AFTER:
                        self._kill(write, cut)
            _answer(request, status, headers, said)
            return
        with closing(self._connect()) as connection:
            if "watch=true" in request.path or "watch=1" in request.path:
                self._stream(connection, request)
            else:
                _answer(request, *self._call(connection, request, body))

    def _kill(self, write: Write, cut: Cut) -> None:
        self._operator.kill()
        self.life += 1
        self.deaths.append((write, cut))
        self._operator.start(self.kubeconfig)
        raise ConnectionAbortedError(f"the operator was killed: {cut.value}")

    def _connect(self) -> http.client.HTTPSConnection:
        where = urlsplit(self._configuration.host)
        return http.client.HTTPSConnection(where.netloc, timeout=_DEADLINE_SECONDS, context=self._tls)

    def _send(
        self, connection: http.client.HTTPSConnection, request: BaseHTTPRequestHandler, body: bytes
    ) -> http.client.HTTPResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OWN_HEADERS}
        for setting in self._configuration.auth_settings().values():
            headers[setting["key"]] = setting["value"]
        connection.request(
            request.command, request.path, body or None, {**headers, "Accept-Encoding": "identity"}
        )
        return connection.getresponse()

    def _call(
        self, connection: http.client.HTTPSConnection, request: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        answer = self._send(connection, request, body)
        return answer.status, answer.getheaders(), answer.read()

    def _stream(self, connection: http.client.HTTPSConnection, request: BaseHTTPRequestHandler) -> None:
        answer = self._send(connection, request, b"")
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OWN_HEADERS:
                request.send_header(name, value)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        while data := answer.read1(_CHUNK):
            request.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        request.wfile.write(b"0\r\n\r\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: connections break whenever the operator dies, which is what this is for."""


class _Handler(BaseHTTPRequestHandler):
    proxy: CuttingProxy
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self._life = self.proxy.life

    def _forward(self) -> None:
        self.proxy.forward(self, self._life)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _forward  # noqa: N815 - names of the base class

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Say nothing."""


def _answer(
    request: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], body: bytes
) -> None:
    request.send_response(status)
    for name, value in headers:
        if name.lower() not in _OWN_HEADERS:
            request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def _kubeconfig(port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "nobody", "user": {"token": "of no use"}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
        "current-context": "proxy",
    }
