"""TLS handshakes in memory: who lets whom in."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> dict[str, Any]:
    """Return the client's certificate as the server sees it, or raise what either side raised."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done = [False, False]
    for _ in range(10):
        for which, end in enumerate(ends):
            try:
                end.do_handshake()
                done[which] = True
            except ssl.SSLWantReadError:
                pass
    assert all(done)
    return ends[1].getpeercert()  # type: ignore[return-value] - the server demands one


def mount(folder: Path, secret: dict[str, Any], host: str = "") -> Path:
    """Do as a node does with a Secret: write its files, or update them; of the workers' those of ``host``."""
    folder.mkdir(exist_ok=True)
    names = {"ca.crt": "ca.crt", f"{host}.crt": "tls.crt", f"{host}.key": "tls.key"}
    for key, value in secret["data"].items():
        name = names.get(key) if host else key
        if name is not None:
            (folder / name).write_bytes(base64.b64decode(value))
    return folder
