"""Read the API as plain JSON: the harness's own processes need no client library and start in no time."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cluster.certificates import KeyPair
from cluster.errors import ClusterError

_TIMEOUT = 10
Json = dict[str, Any]


class Rest:
    """A reader of the API at `server`, as the identity of `pair`; asks for the representation `accept`."""

    def __init__(self, server: str, ca: Path, pair: KeyPair, accept: str = "application/json") -> None:
        self._headers = {"Accept": accept}
        self._host = urlsplit(server).netloc
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._tls.load_cert_chain(pair.certificate, pair.key)

    def is_ready(self) -> bool:
        """Tell whether the API server answers and says that it is ready."""
        try:
            return self._request("/readyz")[0] == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> Json:
        """Return the object at `path`.

        Raises:
            ClusterError: the API server refuses.
            OSError: it cannot be reached.
        """
        status, body = self._request(path)
        if status != http.HTTPStatus.OK:
            raise ClusterError(f"GET {path}: {status} {body.decode(errors='replace')[:500]}")
        return json.loads(body)

    def watch(self, path: str, version: str, seconds: int) -> Iterator[Json]:
        """Yield what changes below `path` after resource version `version`, for at most `seconds`.

        Raises:
            ClusterError: the API server refuses, or has forgotten that version.
            OSError: it cannot be reached.
        """
        connection = self._connect(seconds + _TIMEOUT)
        try:
            query = f"watch=1&resourceVersion={version}&timeoutSeconds={seconds}"
            connection.request("GET", f"{path}?{query}", headers=self._headers)
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise ClusterError(f"watch {path}: {answer.status}")
            for line in answer:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ClusterError(f"watch {path}: {event['object']}")
                yield event
        finally:
            connection.close()

    def _request(self, path: str) -> tuple[int, bytes]:
        connection = self._connect(_TIMEOUT)
        try:
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        return _Connection(self._host, timeout=timeout, context=self._tls)


class _Connection(http.client.HTTPSConnection):
    """A connection that leaks nothing when the server is killed before it has begun with TLS.

    Python 3.11 does not close the socket then, and says later that nobody has.
    """

    def connect(self) -> None:
        """Connect, and begin with TLS if the server is still there."""
        http.client.HTTPConnection.connect(self)
        try:
            self.sock.getpeername()
        except OSError:
            self.close()
            raise
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)
