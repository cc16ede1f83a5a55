"""What an interface has sent and received."""

import socket

import pytest

from gradsieve.errors import LaunchError
from gradsieve_hvd.launcher.counters import idle_traffic, interface_bytes, link_rate


def test_loopback_counts_what_goes_through_it():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        peer, _ = server.accept()
        before = interface_bytes("lo")
        client.sendall(bytes(100_000))
        left = 100_000
        while left:
            left -= len(peer.recv(left))
        peer.close()
        traffic = interface_bytes("lo").since(before)
    assert traffic.sent >= 100_000
    assert traffic.received >= 100_000


def test_outside_a_link_an_interface_must_be_named(monkeypatch):
    monkeypatch.delenv("GRADSIEVE_LINK_INTERFACE", raising=False)
    monkeypatch.delenv("GRADSIEVE_LINK_RATE", raising=False)
    assert link_rate() is None
    with pytest.raises(LaunchError, match="gradsieve run --link"):
        interface_bytes()


def test_an_unknown_interface_is_named():
    with pytest.raises(LaunchError, match="'nosuch0'"):
        interface_bytes("nosuch0")


def test_idle_traffic_is_per_second():
    idle = idle_traffic(0.05, "lo")
    assert idle.sent >= 0
    assert idle.received >= 0
