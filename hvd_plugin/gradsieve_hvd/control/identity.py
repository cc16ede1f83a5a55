"""Who is at the other end of a connection, and what its certificate allows it to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradsieve_hvd.control.contract import (
    AGENT_PATH,
    ORGANIZATION,
    PLAN_PATH,
    ROLE_COORDINATOR,
    ROLE_OPERATOR,
    ROLE_WORKER,
    ROSTER_PATH,
    STATUS_PATH,
    STOP_PATH,
    TELEMETRY_PATH,
)
from gradsieve_hvd.control.fields import Refused

PERMISSIONS: Mapping[tuple[str, str], frozenset[str]] = {
    ("GET", AGENT_PATH): frozenset({ROLE_WORKER}),
    ("PUT", ROSTER_PATH): frozenset({ROLE_OPERATOR}),
    ("PUT", PLAN_PATH): frozenset({ROLE_OPERATOR}),
    ("GET", PLAN_PATH): frozenset({ROLE_WORKER}),
    ("POST", TELEMETRY_PATH): frozenset({ROLE_WORKER}),
    ("GET", STATUS_PATH): frozenset({ROLE_OPERATOR}),
    ("POST", STOP_PATH): frozenset({ROLE_OPERATOR}),
}
"""Call -> roles that may make it. A call that is not listed may be made by nobody."""


@dataclass(frozen=True)
class Identity:
    """What a certificate that the job's CA has signed says about its holder.

    Attributes:
        role: ``coordinator``, ``worker`` or ``operator``.
        name: a worker's host; otherwise the role.
    """

    role: str
    name: str

    @classmethod
    def of(cls, certificate: Mapping[str, Any] | None) -> Identity:
        """The identity in a verified peer certificate as :meth:`ssl.SSLSocket.getpeercert` returns it.

        Raises:
            Refused: there is none, or it is none of gradsieve's.
        """
        pairs = [pair for part in (certificate or {}).get("subject", ()) for pair in part]
        subject = dict(pairs)
        role = subject.get("organizationalUnitName", "")
        name = subject.get("commonName", "")
        known = role in (ROLE_COORDINATOR, ROLE_WORKER, ROLE_OPERATOR)
        if len(pairs) != 3 or subject.get("organizationName") != ORGANIZATION or not known or not name:
            raise Refused("the certificate names no role of a gradsieve job", 403)
        return cls(role, name)

    def demand(self, method: str, path: str) -> None:
        """Refuse a call that this role may not make.

        Raises:
            Refused: it may not.
        """
        if self.role not in PERMISSIONS.get((method, path), frozenset()):
            raise Refused(f"{method} {path} is not for the certificate of {self.role} {self.name!r}", 403)
