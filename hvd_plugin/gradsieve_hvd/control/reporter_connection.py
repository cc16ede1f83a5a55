"""A rank's calls to its job's coordinator: HTTPS with certificates on both sides."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.control import contract
from gradsieve_hvd.control.tls import Authorities, client_context

SECONDS = 10.0
_MOST_BYTES = 1 << 20


class CoordinatorRefused(Exception):
    """The coordinator answered, and did not accept the call. Never leaves `reporter`."""


class Coordinator:
    """A connection to the coordinator, opened when it is needed and kept open.

    Raises:
        ConfigurationError: the address or the certificates cannot be used.
    """

    def __init__(self, address: str, tls: Path) -> None:
        url = urlsplit(address)
        if url.scheme != "https" or not url.hostname:
            raise ConfigurationError(f"{contract.COORDINATOR}={address!r} must be https://HOST:PORT")
        self.address = address
        authorities = Authorities(client_context(tls), tls)
        self._connection = _Connection(url.hostname, url.port or contract.PORT, authorities)

    def plan(self) -> Any:
        """Return the plan as the coordinator spells it.

        Raises:
            CoordinatorRefused: it does not hand it out.
            OSError, http.client.HTTPException, ValueError: there is no usable answer.
        """
        return json.loads(self._call("GET", contract.PLAN_PATH))

    def report(self, telemetry: dict[str, Any]) -> None:
        """Hand over a sample. Raises as `plan`."""
        self._call("POST", contract.TELEMETRY_PATH, json.dumps(telemetry).encode())

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        self._connection.close()

    def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            self._connection.request(method, path, body, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            content = response.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        if not response.isclosed():
            self._connection.close()
            raise http.client.HTTPException(f"the answer has more than {_MOST_BYTES} bytes")
        if response.status >= http.client.BAD_REQUEST:
            reason = content.decode(errors="replace").strip()[:500]
            raise CoordinatorRefused(f"{method} {path}: {response.status} {reason or response.reason}")
        return content


class _Connection(http.client.HTTPConnection):
    """Checks the certificate for the coordinator's name, whatever address is dialled."""

    def __init__(self, host: str, port: int, authorities: Authorities) -> None:
        super().__init__(host, port, timeout=SECONDS)
        self._authorities = authorities

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), SECONDS)
        try:
            self.sock = self._authorities.current().wrap_socket(plain, server_hostname=contract.SERVER_NAME)
        except BaseException:
            plain.close()
            raise
