"""What a rank's network interface has sent and received, headers and retransmissions included."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

from gradsieve.errors import LaunchError
from gradsieve_hvd.launcher.addresses import rank_of_host

INTERFACE_VARIABLE = "GRADSIEVE_LINK_INTERFACE"
RATE_VARIABLE = "GRADSIEVE_LINK_RATE"

MTU = 1500  # bytes, of a packet of IP on an emulated link
# Not /sys/class/net: it shows the network of whoever mounted it. Not /proc/self: threads may differ.
_NETWORK = Path("/proc/thread-self/net")
_HEADERS = 14 + 20 + 32  # bytes: Ethernet, IP, TCP with timestamps
_ARRIVED = ("InNoECTPkts", "InECT0Pkts", "InECT1Pkts", "InCEPkts")


class Traffic(NamedTuple):
    """Bytes of one interface, or bytes per second.

    Attributes:
        sent: by the interface.
        received: likewise.
    """

    sent: float
    received: float

    def since(self, earlier: Traffic) -> Traffic:
        """What came on top of ``earlier``."""
        return Traffic(self.sent - earlier.sent, self.received - earlier.received)


def rate_variable(rank: int) -> str:
    """Where the rate of a rank's link stands, if it is another than `RATE_VARIABLE` tells."""
    return f"{RATE_VARIABLE}_{rank}"


def link_rate() -> int | None:
    """Bits per second of this rank's emulated link; None if it is not shaped, or there is none."""
    rate = os.environ.get(RATE_VARIABLE, "")
    if (rank := rank_of_host(socket.gethostname())) is not None:
        rate = os.environ.get(rate_variable(rank), rate)
    return int(rate) if rate else None


def interface_bytes(interface: str | None = None) -> Traffic:
    """Bytes that ``interface`` has sent and received since it came up.

    Args:
        interface: its name; by default this rank's end of its emulated link, see `link_bytes`. Of others what
            the kernel counts. On ``lo``, every byte counts as both sent and received, and for all processes
            of the machine together.

    Raises:
        LaunchError: there is no emulated link, or no interface of that name.
    """
    if interface:
        counted = _counted(interface)
        return Traffic(counted.sent_bytes, counted.received_bytes)
    name = os.environ.get(INTERFACE_VARIABLE, "")
    if not name:
        raise LaunchError(
            "no emulated link here: start with `gradsieve run --link RATE`, or name an interface"
        )
    return link_bytes(name)


def link_bytes(interface: str) -> Traffic:
    """Bytes that went over an emulated link, as a network card would have sent them.

    TCP hands over pieces of several packets, of which the interface counts the headers once (segmentation
    offload). The stack counts packets, those on ``lo`` among them: what it has more than the interfaces are
    packets that had no headers of their own.

    Raises:
        LaunchError: there is no interface of that name.
    """
    link, within = _counted(interface), _counted("lo")
    handed_on, stack = _statistics("snmp", "Tcp")["OutSegs"], _statistics("netstat", "IpExt")
    sent = handed_on - link.sent_packets - within.sent_packets
    received = sum(stack[name] for name in _ARRIVED) - link.received_packets - within.received_packets
    return Traffic(
        link.sent_bytes + max(sent, 0) * _HEADERS, link.received_bytes + max(received, 0) * _HEADERS
    )


class _Counted(NamedTuple):
    received_bytes: int
    received_packets: int
    sent_bytes: int
    sent_packets: int


def _counted(interface: str) -> _Counted:
    for line in (_NETWORK / "dev").read_text().splitlines():
        label, _, fields = line.partition(":")
        if label.strip() == interface:
            columns = [int(field) for field in fields.split()]
            return _Counted(*columns[0:2], *columns[8:10])
    raise LaunchError(f"interface {interface!r} does not exist here ({_NETWORK / 'dev'})")


def _statistics(file: str, protocol: str) -> dict[str, int]:
    """Return the stack's counters by name: a line of names stands above a line of numbers in such a file."""
    rows = [line.split() for line in (_NETWORK / file).read_text().splitlines()]
    names, numbers = (row[1:] for row in rows if row[0] == f"{protocol}:")
    return dict(zip(names, map(int, numbers), strict=True))


def idle_traffic(seconds: float = 2.0, interface: str | None = None) -> Traffic:
    """Bytes per second while this process sleeps: Horovod's chatter, if all ranks call it together.

    Args:
        seconds: how long to measure; a cycle of Horovod takes a millisecond.
        interface: as for :func:`interface_bytes`.

    Raises:
        LaunchError: as :func:`interface_bytes`.
    """
    before, began = interface_bytes(interface), time.monotonic()
    time.sleep(seconds)
    during, took = interface_bytes(interface).since(before), time.monotonic() - began
    return Traffic(during.sent / took, during.received / took)
