"""Links of one cluster: the machine to the hub, and a link to every node that can be shaped or severed."""

from __future__ import annotations

from ipaddress import IPv4Network

from cluster.addresses import Addresses
from cluster.commands import run
from cluster.sandbox import Sandbox

# tbf: how much may leave back to back (whole segmentation-offload packets must fit), and how long packets
# queue.
_BURST = "64kb"
_QUEUE = "50ms"


def is_free(network: IPv4Network) -> bool:
    """Tell whether the machine has no route of its own into `network`."""
    for line in run(["ip", "-4", "route", "show", "table", "all"]).splitlines():
        words = [
            word for word in line.split() if word not in {"broadcast", "local", "unreachable", "blackhole"}
        ]
        if words[0] != "default" and IPv4Network(words[0], strict=False).overlaps(network):
            return False
    return True


def connect_hub(addresses: Addresses, hub: Sandbox) -> None:
    """Link the machine to the hub, route the cluster's network over it, and set up the hub's bridge."""
    link, prefix = addresses.link, 30
    run(["ip", "link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", str(hub.pid)])
    run(["ip", "address", "add", f"{addresses.machine}/{prefix}", "dev", link])
    run(["ip", "link", "set", link, "up"])
    run(["ip", "route", "add", str(addresses.network), "via", str(addresses.hub)])
    hub.run("sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1")
    hub.run(
        "ip",
        "-batch",
        "-",
        stdin=f"address add {addresses.hub}/{prefix} dev uplink\n"
        "link set uplink up\n"
        "link add br0 type bridge\n"
        f"address add {addresses.api}/24 dev br0\n"
        "link set br0 up\n",
    )


def connect_node(addresses: Addresses, hub: Sandbox, node: Sandbox, index: int, nodes: int) -> None:
    """Link node `index` of `nodes` to the hub's bridge, with routes to the pods of every other node."""
    hub.run("ip", "link", "add", f"n{index}", "type", "veth", "peer", "name", "eth0", "netns", str(node.pid))
    hub.run(
        "ip",
        "-batch",
        "-",
        stdin=f"link set n{index} master br0 up\n"
        f"route add {addresses.pods(index)} via {addresses.node(index)}\n",
    )
    node.run("sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1")
    others = [other for other in range(1, nodes + 1) if other != index]
    node.run(
        "ip",
        "-batch",
        "-",
        stdin=f"address add {addresses.node(index)}/24 dev eth0\n"
        "link set eth0 up\n"
        f"route add default via {addresses.api}\n"
        + "".join(f"route add {addresses.pods(other)} via {addresses.node(other)}\n" for other in others),
    )


def shape(hub: Sandbox, node: Sandbox, index: int, rate: str | None) -> None:
    """Limit the node's link to `rate` (such as "100mbit") in either direction; None lifts the limit."""
    for end, device in ((hub, f"n{index}"), (node, "eth0")):
        if rate is None:
            end.run("tc", "qdisc", "del", "dev", device, "root", check=False)
        else:
            tbf = ["tbf", "rate", rate, "burst", _BURST, "latency", _QUEUE]
            end.run("tc", "qdisc", "replace", "dev", device, "root", *tbf)


def switch(hub: Sandbox, index: int, *, on: bool) -> None:
    """Restore the node's link or cut it, at the hub's end: the node keeps its routes."""
    hub.run("ip", "link", "set", f"n{index}", "up" if on else "down")
