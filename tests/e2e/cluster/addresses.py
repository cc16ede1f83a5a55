"""Names and addresses of one cluster: all follow from its slot, so that clusters side by side share none.

::

    machine ── gradsieve<slot> ═══ uplink ─┐           10.<160+slot>.255.0/30 between the machine and the hub
                                    hub    br0 ── n1 ═══ eth0   node 1 ── cni0 ── pods of node 1
                                           │   ── n2 ═══ eth0   node 2 ── cni0 ── pods of node 2
                 API server, DNS: br0's address                 10.<160+slot>.0.<10+i>
                 10.<160+slot>.<i>.0/24
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

SLOTS = 16
MOST_NODES = 20
_FIRST = 160


@dataclass(frozen=True)
class Addresses:
    """What the cluster in `slot` calls and addresses its parts."""

    slot: int

    @property
    def network(self) -> IPv4Network:
        """Everything in the cluster; the machine routes it to the hub."""
        return IPv4Network(f"10.{_FIRST + self.slot}.0.0/16")

    @property
    def services(self) -> IPv4Network:
        """The cluster IPs of Services."""
        return IPv4Network((int(self.network[0]) + (192 << 8), 20))

    @property
    def api(self) -> IPv4Address:
        """The hub on the nodes' network: API server and DNS."""
        return self.network[1]

    @property
    def api_service(self) -> IPv4Address:
        """The cluster IP of the Service `kubernetes`: by rule the first one."""
        return self.services[1]

    @property
    def machine(self) -> IPv4Address:
        """The machine's end of its link to the hub."""
        return self.network[(255 << 8) + 1]

    @property
    def hub(self) -> IPv4Address:
        """The hub's end of its link to the machine."""
        return self.network[(255 << 8) + 2]

    @property
    def link(self) -> str:
        """The name of the machine's end of its link to the hub."""
        return f"gradsieve{self.slot}"

    @property
    def cgroup(self) -> str:
        """The cgroup of all that belongs to the cluster, in every hierarchy."""
        return f"gradsieve{self.slot}"

    def node(self, index: int) -> IPv4Address:
        """Return the address of node `index`, counted from 1."""
        return self.network[10 + index]

    def pods(self, index: int) -> IPv4Network:
        """Return the network of the pods on node `index`, counted from 1."""
        return IPv4Network((int(self.network[index << 8]), 24))
