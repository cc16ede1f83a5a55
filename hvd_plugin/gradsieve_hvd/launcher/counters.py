"""What a rank's network interface has sent and received, headers and retransmissions included."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from gradsieve.errors import LaunchError

INTERFACE_VARIABLE = "GRADSIEVE_LINK_INTERFACE"
RATE_VARIABLE = "GRADSIEVE_LINK_RATE"

# Not /sys/class/net: it shows the network of whoever mounted it.
_COUNTERS = Path("/proc/self/net/dev")


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


def link_rate() -> int | None:
    """Bits per second of this rank's emulated link; None if it is not shaped, or there is none."""
    rate = os.environ.get(RATE_VARIABLE, "")
    return int(rate) if rate else None


def interface_bytes(interface: str | None = None) -> Traffic:
    """Bytes that ``interface`` has sent and received since it came up.

    Args:
        interface: its name; by default this rank's end of its emulated link. On ``lo``, every byte counts as
            both sent and received, and for all processes of the machine together.

    Raises:
        LaunchError: there is no emulated link, or no interface of that name.
    """
    name = interface or os.environ.get(INTERFACE_VARIABLE, "")
    if not name:
        raise LaunchError(
            "no emulated link here: start with `gradsieve run --link RATE`, or name an interface"
        )
    for line in _COUNTERS.read_text().splitlines():
        label, _, fields = line.partition(":")
        if label.strip() == name:
            columns = fields.split()
            return Traffic(sent=int(columns[8]), received=int(columns[0]))
    raise LaunchError(f"interface {name!r} does not exist here ({_COUNTERS})")


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
