"""Where the API server is and who we are: in a pod from its ServiceAccount, elsewhere from a kubeconfig."""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes import config
from kubernetes.client import Configuration

_FRESH_SECONDS = 5.0
"""For so long the headers are the same: the library looks for a new token minutes before one expires, and to
ask it takes as long as the half of a small request."""


@dataclass(frozen=True)
class Access:
    """What a client needs to call the API server.

    Attributes:
        url: of the server, without a slash at its end.
        tls: how to check it and what certificate to show; None for plain HTTP.
        headers: what to send with each call; asked for again each time, since tokens expire.
    """

    url: str
    tls: ssl.SSLContext | None
    headers: Callable[[], dict[str, str]]

    @classmethod
    def find(cls, clock: Callable[[], float] = time.monotonic) -> Access:
        """Read the ServiceAccount of the pod or, outside of a pod, the kubeconfig.

        Args:
            clock: seconds that only grow.

        Raises:
            kubernetes.config.ConfigException: there is neither.
        """
        found = Configuration()
        try:
            config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
        except config.ConfigException:
            # Named here because the library looks at the variable only once, when it is imported.
            named = os.environ.get("KUBECONFIG")
            config.load_kube_config(named, client_configuration=found)  # type: ignore[no-untyped-call]

        url = found.host.rstrip("/")
        return cls(url, _tls(found) if url.startswith("https:") else None, _Headers(found, clock))


class _Headers:
    """Returns the headers that say who we are."""

    def __init__(self, found: Configuration, clock: Callable[[], float]) -> None:
        self._found, self._clock = found, clock
        self._known, self._asked = dict[str, str](), -math.inf

    def __call__(self) -> dict[str, str]:
        now = self._clock()
        if now - self._asked >= _FRESH_SECONDS:
            # Asking for them refreshes a token that is about to expire.
            settings: Mapping[str, Any] = self._found.auth_settings()
            self._known = {
                str(each["key"]): str(each["value"]) for each in settings.values() if each["value"]
            }
            self._asked = now
        return self._known


def _tls(found: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=found.ssl_ca_cert or None)
    # Python 3.13 refuses authorities without a key identifier; clusters' own authorities may be such.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not found.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if found.cert_file:
        context.load_cert_chain(found.cert_file, found.key_file)
    return context
