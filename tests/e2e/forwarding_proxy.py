"""A proxy in front of the API server, for an operator that finds it by a kubeconfig of the proxy's own."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from kubernetes.config import new_client_from_config
from operator_process import ACCOUNT

Headers = list[tuple[str, str]]
_DEADLINE_SECONDS = 400
_CHUNK = 1 << 16
_OWN_HEADERS = frozenset({"authorization", "connection", "content-length", "host", "transfer-encoding"})


class ForwardingProxy:
    """Forwards everything; those built on it say what they do instead.

    Args:
        cluster: whose API server it is for.
        folder: takes its kubeconfig.

    Attributes:
        kubeconfig: by which clients find it.
    """

    def __init__(self, cluster: Any, folder: Path) -> None:
        # It may do what the operator may.
        self._configuration = new_client_from_config(str(cluster.kubeconfig_of(ACCOUNT))).configuration
        self._tls = ssl.create_default_context(cafile=self._configuration.ssl_ca_cert)
        self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self._configuration.cert_file:
            self._tls.load_cert_chain(self._configuration.cert_file, self._configuration.key_file)
        self._server = _Server(("127.0.0.1", 0), type("Handler", (Handler,), {"proxy": self}))
        self.kubeconfig = folder / "through-the-proxy"
        self.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(self._server.server_port)))

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve meanwhile."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def connected(self) -> int:
        """Return what is to be known of a client that has just connected: `Handler.client`."""
        return 0

    def forward(self, request: Handler) -> None:
        """Carry one request to the API server, and its answer back."""
        body = request.body()
        with closing(self._connect()) as connection:
            if request.watches():
                self._stream(connection, request)
            else:
                request.answer(*self._call(connection, request, body))

    def _connect(self) -> http.client.HTTPSConnection:
        where = urlsplit(self._configuration.host)
        return http.client.HTTPSConnection(where.netloc, timeout=_DEADLINE_SECONDS, context=self._tls)

    def _send(
        self, connection: http.client.HTTPSConnection, request: Handler, body: bytes
    ) -> http.client.HTTPResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OWN_HEADERS}
        for setting in self._configuration.auth_settings().values():
            headers[setting["key"]] = setting["value"]
        connection.request(
            request.command, request.path, body or None, {**headers, "Accept-Encoding": "identity"}
        )
        return connection.getresponse()

    def _call(
        self, connection: http.client.HTTPSConnection, request: Handler, body: bytes
    ) -> tuple[int, Headers, bytes]:
        answer = self._send(connection, request, body)
        return answer.status, answer.getheaders(), answer.read()

    def _stream(self, connection: http.client.HTTPSConnection, request: Handler) -> None:
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
        """Say nothing: connections break, which is what these proxies are for."""


class Handler(BaseHTTPRequestHandler):
    """One connection of a client.

    Attributes:
        proxy: whose it is.
        client: what the proxy knows of it.
    """

    proxy: ForwardingProxy
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        """Take note of the client."""
        super().setup()
        self.client = self.proxy.connected()

    def body(self) -> bytes:
        """Read what was sent."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def watches(self) -> bool:
        """Whether the answer has no end of its own."""
        return "watch=true" in self.path or "watch=1" in self.path

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send an answer."""
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _OWN_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _forward(self) -> None:
        self.proxy.forward(self)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _forward  # noqa: N815 - names of the base class

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Say nothing."""


def _kubeconfig(port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "nobody", "user": {"token": "of no use"}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
        "current-context": "proxy",
    }
