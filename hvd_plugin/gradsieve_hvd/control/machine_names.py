"""Whether MPI can tell the machines of a job apart: pure."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress

from gradsieve.errors import LaunchError

_MOST_NAMED = 10


def check_distinct(machines: Mapping[str, str]) -> None:
    """Refuse hosts that Open MPI would take for one machine.

    Ranks below two daemons of ``mpirun`` whose machines have one name wait for each other for ever, or fail
    with a truncated message; with other names the same agents work (seen with Open MPI 5.0.11).

    Args:
        machines: host -> name of its kernel, as hostname(1) prints it; empty if it is not known.

    Raises:
        LaunchError: two hosts have one name, up to its first dot.
    """
    hosts = defaultdict(list)
    for host, machine in machines.items():
        hosts[_short(machine)].append(host)
    for name, shared in hosts.items():
        if name and len(shared) > 1:
            more = f" and {len(shared) - _MOST_NAMED} more" if len(shared) > _MOST_NAMED else ""
            raise LaunchError(
                f"hosts {', '.join(shared[:_MOST_NAMED])}{more} run on machines that are all named {name!r}, "
                "which MPI cannot tell apart (it compares what hostname(1) prints, up to the first dot). "
                "One machine: let one agent take all its ranks as slots. Pods with hostNetwork: have one per "
                "node. Several machines: rename them. Or use backend Gloo"
            )


def _short(machine: str) -> str:
    """As Open MPI shortens it: an address keeps its dots."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(machine))
    return machine.partition(".")[0]
