"""Where the API server is and who we are: in a pod from its ServiceAccount, elsewhere from a kubeconfig."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes import config
from kubernetes.client import Configuration


@dataclass(frozen=True)
class Access:
    """What a client needs to call the API server.

    Attributes:
        url: of the server, without a slash at its end.
        tls: how to check it and what certificate to show; None for plain HTTP.
        headers: what to send with each call; asked anew each time, since tokens expire.
    """

    url: str
    tls: ssl.SSLContext | None
    headers: Callable[[], dict[str, str]]

    @classmethod
    def find(cls) -> Access:
        """Read the ServiceAccount of the pod or, outside of a pod, the kubeconfig.

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

        def headers() -> dict[str, str]:
            # Asking for them refreshes a token that is about to expire.
            settings: Mapping[str, Any] = found.auth_settings()
            return {str(each["key"]): str(each["value"]) for each in settings.values() if each["value"]}

        url = found.host.rstrip("/")
        return cls(url, _tls(found) if url.startswith("https:") else None, headers)


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
