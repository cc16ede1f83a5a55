"""The emulated network of one job: a host for every rank, each behind a shaped link to a common bridge.

::

    hub (mpirun)   br0 ──┬── p0 ═══ eth0   h0 (rank 0)          ═══  veth pair, tbf on both ends:
                         ├── p1 ═══ eth0   h1 (rank 1)               p* limits what the host receives,
                         └── …                                       eth0 limits what it sends

Hub and hosts are network namespaces without names. They live as long as a process or a descriptor of the job
does, so that nothing has to be taken down and nothing can be left over; and as all names and addresses are
inside them, jobs cannot collide with each other or with a network of the machine.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyroute2 import IPRoute

from gradsieve.errors import LaunchError
from gradsieve_hvd.launcher import linux
from gradsieve_hvd.launcher.addresses import (
    HUB,
    INTERFACE,
    MOST_HOSTS,
    PREFIX_LENGTH,
    host_address,
    host_name,
)
from gradsieve_hvd.launcher.counters import MTU, link_bytes

_BURST_SECONDS = 0.002
_PIECE_SECONDS = 0.001
_MOST_SEGMENTS = 44  # 64 KiB, all that TCP ever hands over at once
_SMALLEST_BURST = 16 * 1024
_QUEUE_SECONDS = 0.05
# A few segmentation-offload packets per connection: with less, they lose their tails at once.
_SMALLEST_QUEUE = 256 * 1024


def burst(rate: int) -> int:
    """Bytes that may leave a link of ``rate`` bits per second back to back.

    Two milliseconds' worth covers the timer's lateness on a busy machine; more would let whole small messages
    through at memory speed. What TCP hands over at once must fit, or tbf cuts it; see `most_segments`.
    """
    return max(_SMALLEST_BURST, round(rate / 8 * _BURST_SECONDS))


def most_segments(rate: int) -> int:
    """Packets' worth that TCP may hand to a link of ``rate`` bits per second as one.

    A network card cuts large pieces into packets by itself. What TCP hands over is limited here to what the
    link carries in a millisecond, half a burst: tbf cuts what exceeds a burst, and then every packet takes a
    timer's interrupt and the passage through bridge and both stacks from the ranks' cores. A message that is
    behind such a piece waits a millisecond, or as long as one packet takes.
    """
    return max(1, min(round(rate / 8 * _PIECE_SECONDS / MTU), _MOST_SEGMENTS))


class EmulatedLink:
    """The network under the calling process, which must have entered private namespaces.

    The process becomes the hub; descriptors that it holds keep the hosts alive.

    Args:
        rates: bits per second of each rank's link in either direction, or None for no shaping.

    Raises:
        LaunchError: the kernel refuses a part of it (no veth, bridge or tbf), or there are too many hosts.
    """

    def __init__(self, rates: Sequence[int | None]) -> None:
        ranks = len(rates)
        if ranks > MOST_HOSTS:
            raise LaunchError(
                f"{ranks} ranks on an emulated link: at most {MOST_HOSTS} hosts fit on its bridge"
            )
        self._hub = _current_network()
        self._hosts: list[int] = []
        linux.set_host_name("hub")
        try:
            with IPRoute() as hub:
                _set_up_bridge(hub)
                for rank, rate in enumerate(rates):
                    self._add_host(hub, rank, rate)
        except OSError as refused:
            raise LaunchError(
                f"the emulated link could not be built (veth, bridge or tbf in the kernel?): {refused}"
            ) from refused
        except Exception as refused:
            raise LaunchError(f"the emulated link could not be built: {refused!r}") from refused
        _name_hosts(ranks)

    def namespaces(self) -> dict[str, str]:
        """Host name -> path of its network namespace, for processes below this one."""
        return {host_name(rank): f"/proc/{os.getpid()}/fd/{host}" for rank, host in enumerate(self._hosts)}

    def bytes_sent(self) -> list[int]:
        """Bytes that each host's interface has sent so far, by rank."""
        return [self._sent(rank) for rank in range(len(self._hosts))]

    def _sent(self, rank: int) -> int:
        with self._inside(rank):
            return round(link_bytes(INTERFACE).sent)

    def _add_host(self, hub: IPRoute, rank: int, rate: int | None) -> None:
        linux.unshare(linux.CLONE_NEWNET)
        self._hosts.append(_current_network())
        linux.set_namespace(self._hub, linux.CLONE_NEWNET)
        port = f"p{rank}"
        hub.link("add", ifname=port, kind="veth", peer={"ifname": INTERFACE, "net_ns_fd": self._hosts[rank]})
        index = hub.link_lookup(ifname=port)[0]
        hub.link("set", index=index, master=hub.link_lookup(ifname="br0")[0], state="up")
        _shape(hub, index, rate)
        with self._inside(rank), IPRoute() as host:
            _set_up_host(host, rank, rate)

    @contextmanager
    def _inside(self, rank: int) -> Iterator[None]:
        linux.set_namespace(self._hosts[rank], linux.CLONE_NEWNET)
        try:
            yield
        finally:
            linux.set_namespace(self._hub, linux.CLONE_NEWNET)


def _current_network() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _set_up_bridge(hub: IPRoute) -> None:
    hub.link("set", index=hub.link_lookup(ifname="lo")[0], state="up")
    hub.link("add", ifname="br0", kind="bridge")
    bridge = hub.link_lookup(ifname="br0")[0]
    hub.addr("add", index=bridge, address=HUB, prefixlen=PREFIX_LENGTH)
    hub.link("set", index=bridge, state="up")


def _set_up_host(host: IPRoute, rank: int, rate: int | None) -> None:
    host.link("set", index=host.link_lookup(ifname="lo")[0], state="up")
    index = host.link_lookup(ifname=INTERFACE)[0]
    host.addr("add", index=index, address=host_address(rank), prefixlen=PREFIX_LENGTH)
    host.link("set", index=index, state="up")
    if rate is not None:
        host.link("set", index=index, gso_max_segs=most_segments(rate))
    _shape(host, index, rate)


def _shape(network: IPRoute, index: int, rate: int | None) -> None:
    if rate is not None:
        limit = burst(rate) + max(_SMALLEST_QUEUE, round(rate / 8 * _QUEUE_SECONDS))
        network.tc("add", "tbf", index=index, handle="1:", rate=rate // 8, burst=burst(rate), limit=limit)


def _name_hosts(ranks: int) -> None:
    """Let the hosts' names resolve, in this job's mount namespace alone."""
    lines = [
        "127.0.0.1 localhost",
        f"{HUB} hub",
        *(f"{host_address(rank)} {host_name(rank)}" for rank in range(ranks)),
        # A socket of both families shows IPv4 so; torch warns once per rank of one that has no name.
        *(f"::ffff:{host_address(rank)} {host_name(rank)}-mapped" for rank in range(ranks)),
    ]
    linux.mount("none", "/", linux.MS_REC | linux.MS_SLAVE)
    with tempfile.NamedTemporaryFile("w", prefix="gradsieve-hosts-") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        Path(file.name).chmod(0o644)
        linux.mount(file.name, "/etc/hosts", linux.MS_BIND)
