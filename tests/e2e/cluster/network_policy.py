"""NetworkPolicies as an nft ruleset: pure, from the API's objects to the text that `nft -f` takes.

A pod that a policy selects for a direction is isolated in that direction: only what a policy for it allows
gets through. Both ends must allow a connection. Answers to allowed packets pass, as in every implementation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
TABLE = "gradsieve_policy"


@dataclass(frozen=True)
class Endpoint:
    """A pod (or the DNS server) as policies see it; `ports` are the named ones, by name and protocol."""

    namespace: str
    labels: dict[str, str]
    address: str
    ports: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Allowed:
    """Connections that a policy lets through, of one direction.

    Attributes:
        sources, destinations: addresses; None for any.
        outside: networks that are taken out of the peers again.
        protocol, ports: such as "tcp" and "80, 90-100"; None for all.
    """

    sources: tuple[str, ...] | None
    destinations: tuple[str, ...] | None
    outside: tuple[str, ...] = ()
    protocol: str | None = None
    ports: str | None = None


def matches(selector: Json, labels: dict[str, str]) -> bool:
    """Tell whether a label selector of the API selects `labels`; an empty one selects everything.

    Raises:
        ValueError: it uses an operator that the API does not know.
    """
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_fulfils(expression, labels) for expression in selector.get("matchExpressions") or [])


def endpoints(pods: Sequence[Json]) -> list[Endpoint]:
    """Return those of `pods` that policies apply to: with an address of their own, and not yet finished."""
    return [
        Endpoint(
            pod["metadata"]["namespace"],
            pod["metadata"].get("labels") or {},
            pod["status"]["podIP"],
            {
                (port["name"], port.get("protocol", "TCP")): port["containerPort"]
                for container in pod["spec"]["containers"]
                for port in container.get("ports") or []
                if "name" in port
            },
        )
        for pod in pods
        if pod["status"].get("podIP")
        and not pod["spec"].get("hostNetwork")
        and pod["status"].get("phase") not in {"Succeeded", "Failed"}
    ]


def ruleset(policies: Sequence[Json], pods: Sequence[Endpoint], namespaces: dict[str, dict[str, str]]) -> str:
    """Return the nft table that enforces `policies`, replacing what an earlier one said in one transaction.

    1. A packet of a connection that was let through passes.
    2. From an isolated pod it must pass the chain `egress`, to an isolated pod the chain `ingress`.
    3. A chain returns at the first rule of a policy that allows it, and drops it at the end.

    Args:
        policies: NetworkPolicy objects.
        pods: all endpoints of the cluster.
        namespaces: the labels of every namespace, by name.
    """
    isolated: dict[str, set[str]] = {"ingress": set(), "egress": set()}
    rules: dict[str, set[str]] = {"ingress": set(), "egress": set()}
    for policy in policies:
        for direction in ("ingress", "egress"):
            if direction.capitalize() in _types(policy["spec"]):
                selected = _selected(policy, pods)
                isolated[direction] |= {pod.address for pod in selected}
                for allowed in _allowed(policy, direction, selected, pods, namespaces):
                    rules[direction].add(_rule(allowed, direction))
    lines = [f"add table inet {TABLE}", f"delete table inet {TABLE}", f"table inet {TABLE} {{"]
    for direction in ("ingress", "egress"):
        elements = f" elements = {{ {_listed(isolated[direction])} }}" if isolated[direction] else ""
        lines.append(f"  set {direction}_isolated {{ type ipv4_addr;{elements} }}")
        lines.append(f"  chain {direction} {{")
        lines += [f"    {rule} return" for rule in sorted(rules[direction])]
        lines += ["    drop", "  }"]
    lines += [
        "  chain forward {",
        "    type filter hook forward priority filter; policy accept;",
        "    ct state established,related accept",
        "    ip saddr @egress_isolated jump egress",
        "    ip daddr @ingress_isolated jump ingress",
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _types(spec: Json) -> list[str]:
    return spec.get("policyTypes") or (["Ingress", "Egress"] if "egress" in spec else ["Ingress"])


def _selected(policy: Json, pods: Sequence[Endpoint]) -> list[Endpoint]:
    namespace, selector = policy["metadata"]["namespace"], policy["spec"].get("podSelector") or {}
    return [pod for pod in pods if pod.namespace == namespace and matches(selector, pod.labels)]


def _allowed(
    policy: Json,
    direction: str,
    selected: Sequence[Endpoint],
    pods: Sequence[Endpoint],
    namespaces: dict[str, dict[str, str]],
) -> Iterator[Allowed]:
    """Yield what the rules of one direction let through; nothing where they select nobody."""
    own = tuple(pod.address for pod in selected)
    for rule in (policy["spec"].get(direction) or []) if own else []:
        for peers, outside, known in _peers(
            rule.get("from" if direction == "ingress" else "to"), policy, pods, namespaces
        ):
            targets = list(selected) if direction == "ingress" else known
            for protocol, ports, owners in _ports(rule.get("ports"), targets):
                if direction == "ingress":
                    yield Allowed(peers, owners or own, outside, protocol, ports)
                else:
                    yield Allowed(own, owners or peers, outside, protocol, ports)


def _peers(
    listed: Sequence[Json] | None,
    policy: Json,
    pods: Sequence[Endpoint],
    namespaces: dict[str, dict[str, str]],
) -> Iterator[tuple[tuple[str, ...] | None, tuple[str, ...], list[Endpoint]]]:
    """Yield addresses (None: any), exceptions and pods of every peer that a rule lists."""
    if not listed:
        yield None, (), list(pods)
        return
    for peer in listed:
        if block := peer.get("ipBlock"):
            yield (block["cidr"],), tuple(block.get("except") or ()), []
            continue
        found = [pod for pod in pods if _is_peer(peer, pod, policy["metadata"]["namespace"], namespaces)]
        if found:
            yield tuple(pod.address for pod in found), (), found


def _is_peer(peer: Json, pod: Endpoint, home: str, namespaces: dict[str, dict[str, str]]) -> bool:
    if "namespaceSelector" in peer:
        if not matches(peer["namespaceSelector"] or {}, namespaces.get(pod.namespace, {})):
            return False
    elif pod.namespace != home:
        return False
    return matches(peer.get("podSelector") or {}, pod.labels)


def _ports(
    listed: Sequence[Json] | None, targets: Sequence[Endpoint]
) -> Iterator[tuple[str | None, str | None, tuple[str, ...] | None]]:
    """Yield protocol, ports and, for a named port, the addresses of the pods that mean that number by it."""
    if not listed:
        yield None, None, None
        return
    for entry in listed:
        protocol, port = entry.get("protocol", "TCP"), entry.get("port")
        if isinstance(port, str):
            numbers = {pod.address: pod.ports.get((port, protocol)) for pod in targets}
            for number in {number for number in numbers.values() if number is not None}:
                owners = tuple(address for address, named in numbers.items() if named == number)
                yield protocol.lower(), str(number), owners
        elif port is None:
            yield protocol.lower(), None, None
        else:
            yield protocol.lower(), f"{port}-{entry['endPort']}" if "endPort" in entry else str(port), None


def _rule(allowed: Allowed, direction: str) -> str:
    parts = []
    if allowed.sources is not None:
        parts.append(f"ip saddr {{ {_listed(allowed.sources)} }}")
    if allowed.destinations is not None:
        parts.append(f"ip daddr {{ {_listed(allowed.destinations)} }}")
    if allowed.outside:
        parts.append(
            f"ip {'saddr' if direction == 'ingress' else 'daddr'} != {{ {_listed(allowed.outside)} }}"
        )
    if allowed.ports is not None:
        parts.append(f"{allowed.protocol} dport {{ {allowed.ports} }}")
    elif allowed.protocol is not None:
        parts.append(f"meta l4proto {allowed.protocol}")
    return " ".join(parts)


def _fulfils(expression: Json, labels: dict[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case other:
            raise ValueError(f"label selector with operator {other}")


def _listed(addresses: Sequence[str] | set[str]) -> str:
    return ", ".join(sorted(set(addresses)))
