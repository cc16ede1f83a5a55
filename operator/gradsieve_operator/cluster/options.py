"""How the operator runs: from its environment, which the chart sets."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gradsieve_operator import transitions
from gradsieve_operator.decide import Pace
from gradsieve_operator.errors import SpecError
from gradsieve_operator.spec.accounts import ANY_ACCOUNT, VARIABLE, AllowedAccounts

_LEAST_SECONDS, _MOST_SECONDS = 1.0, 60.0
"""Of the intervals that may be set: a sample that is older than a minute is called stale."""

_MOST_SECRETS_SECONDS = 3600.0


@dataclass(frozen=True)
class Options:
    """How the operator runs; from its environment, which the chart sets.

    Attributes:
        namespaces: of the jobs that it serves; empty for all.
        sees_nodes: whether it may read nodes and all pods; without, it plans nothing.
        namespace: its own; empty outside of a cluster: then it does not ask for a Lease.
        identity: tells replicas apart.
        cidrs: from where it calls coordinators when it runs outside of the cluster.
        health: where to serve ``/healthz``; empty for nowhere.
        application: value of the label app.kubernetes.io/name of its pods.
        accounts: which ServiceAccounts jobs may use.
        pace: how often coordinators are asked.
        transitions: whether to write what becomes of jobs as lines of JSON.
        prometheus: URL of what knows how nodes are; empty for nobody.
    """

    namespaces: tuple[str, ...] = ()
    sees_nodes: bool = True
    namespace: str = ""
    identity: str = ""
    cidrs: tuple[str, ...] = ()
    health: str = ""
    application: str = "gradsieve-operator"
    accounts: AllowedAccounts = ANY_ACCOUNT
    pace: Pace = field(default_factory=Pace)
    transitions: bool = False
    prometheus: str = ""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Options:
        """Read the variables ``GRADSIEVE_*`` that the chart sets.

        Raises:
            SpecError: the list of accounts, a number of seconds, a format, or a URL, cannot be read.
        """
        return cls(
            namespaces=_words(environment.get("GRADSIEVE_WATCH_NAMESPACES", "")),
            sees_nodes=environment.get("GRADSIEVE_PLAN_NODES", "true") != "false",
            namespace=environment.get("GRADSIEVE_OPERATOR_NAMESPACE", ""),
            identity=environment.get("GRADSIEVE_OPERATOR_POD") or f"{socket.gethostname()}-{os.getpid()}",
            cidrs=_words(environment.get("GRADSIEVE_OPERATOR_CIDRS", "")),
            health=environment.get("GRADSIEVE_HEALTH_LISTEN", ""),
            application=environment.get("GRADSIEVE_OPERATOR_NAME") or "gradsieve-operator",
            accounts=AllowedAccounts.read(environment.get(VARIABLE)),
            pace=Pace(
                steady=_seconds(environment, "GRADSIEVE_COORDINATOR_SECONDS", Pace.steady),
                telemetry=_seconds(environment, "GRADSIEVE_TELEMETRY_SECONDS", Pace.telemetry),
                secrets=_seconds(
                    environment, "GRADSIEVE_SECRETS_SECONDS", Pace.secrets, most=_MOST_SECRETS_SECONDS
                ),
            ),
            transitions=transitions.wanted(environment),
            prometheus=_url(environment, "GRADSIEVE_PROMETHEUS_URL"),
        )


def _seconds(
    environment: Mapping[str, str], variable: str, default: float, most: float = _MOST_SECONDS
) -> float:
    text = environment.get(variable) or str(default)
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not _LEAST_SECONDS <= found <= most:
        raise SpecError(variable, f"must be from {_LEAST_SECONDS:g} to {most:g} seconds, not {text!r}")
    return found


def _url(environment: Mapping[str, str], variable: str) -> str:
    text = environment.get(variable, "")
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query
        sound = sound and parts.port != 0
    except ValueError:
        sound = False
    if text and not sound:
        raise SpecError(variable, f"must be the URL of a Prometheus, http://HOST:PORT, not {text!r}")
    return text


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
