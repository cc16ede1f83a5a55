"""Names and addresses on the emulated network: private to each job, so that all jobs use the same."""

from __future__ import annotations

SUBNET = "10.99.0.0/16"
PREFIX_LENGTH = 16
HUB = "10.99.255.1"
"""Address of the hub, where ``mpirun`` or the rendezvous server runs."""

INTERFACE = "eth0"
"""Name of the network interface on every host."""

MOST_HOSTS = 1000
"""Ports that Linux gives one bridge, less a few."""


def host_name(rank: int) -> str:
    """Name of the host on which ``rank`` runs."""
    return f"h{rank}"


def rank_of_host(name: str) -> int | None:
    """Return the rank that runs on the host of that name; None if it is none of the emulated network."""
    number = name.removeprefix("h")
    return int(number) if number != name and number.isdecimal() else None


def host_address(rank: int) -> str:
    """Address of the host on which ``rank`` runs."""
    high, low = divmod(rank + 2, 256)
    return f"10.99.{high}.{low}"
