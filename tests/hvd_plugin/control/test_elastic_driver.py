"""Horovod's rendezvous with manners: strangers are refused, and nothing is unpickled."""

import base64
import os
import pickle
import socketserver
import struct
import threading
from http.client import HTTPConnection

import pytest

pytest.importorskip("horovod", reason="NO HOROVOD HERE: `gradsieve build-horovod` builds it")

from horovod.runner.common.util import codec, secret
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.elastic.discovery import FixedHosts

from gradsieve_hvd.control.elastic_driver import (
    Driver,
    Notifier,
    Rendezvous,
    notification_service,
    rendezvous_handler,
)
from gradsieve_hvd.control.fields import Refused

KEY = bytes(range(32))
SERVICE = ({"lo": [("127.0.0.1", 4567)], "eth0": [("10.0.0.1", 4567), ("10.0.0.2", 4567)]}, KEY)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("/tmp/gradsieve-was-unpickled",)


def test_what_horovods_ranks_say_is_understood():
    assert notification_service(codec.dumps_base64(SERVICE, to_ascii=False)) == (4567, KEY)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(codec.dumps_base64((SERVICE, Evil()), to_ascii=False), id="code"),
        pytest.param(base64.b64encode(pickle.dumps(Evil(), protocol=0)), id="code, protocol 0"),
        pytest.param(codec.dumps_base64(({"lo": [("a", 1), ("a", 2)]}, KEY), to_ascii=False), id="two ports"),
        pytest.param(codec.dumps_base64(({"lo": [("a", 70000)]}, KEY), to_ascii=False), id="no port"),
        pytest.param(codec.dumps_base64(({"lo": [("a", 1)]}, "key"), to_ascii=False), id="no key"),
        pytest.param(base64.b64encode(b"\x80\x05garbage"), id="no pickle"),
        pytest.param(base64.b64encode(pickle.dumps(SERVICE)[:-5]), id="cut off"),
        pytest.param(b"?", id="no base64"),
        pytest.param(b"", id="empty"),
    ],
)
def test_anything_else_is_refused_and_never_executed(text):
    with pytest.raises(Refused, match="notification service"):
        notification_service(text)
    assert not os.path.exists("/tmp/gradsieve-was-unpickled")  # noqa: PTH110 - a plain question


class Rank(socketserver.StreamRequestHandler):
    def handle(self):
        digest = self.rfile.read(secret.DIGEST_LENGTH)
        (length,) = struct.unpack("i", self.rfile.read(4))
        message = self.rfile.read(length)
        self.server.got.append((secret.check_digest(KEY, message, digest), pickle.loads(message)))
        self.wfile.write(b"anything")


def test_a_rank_is_notified_in_horovods_own_words():
    with socketserver.TCPServer(("127.0.0.1", 0), Rank) as rank:
        rank.got = []
        answering = threading.Thread(target=rank.handle_request)
        answering.start()
        Notifier("127.0.0.1", (rank.server_address[1], KEY)).notify_hosts_updated(17, 2)
        answering.join(10)
    ((signed, request),) = rank.got
    assert (signed, type(request).__name__, request.timestamp, request.res) == (
        True,
        "HostsUpdatedRequest",
        17,
        2,
    )


@pytest.fixture
def rendezvous():
    """A rendezvous for host ``mine`` at this address and host ``other`` elsewhere; yields how to ask it."""
    assigned = []
    server = Rendezvous(assigned.append)
    driver = Driver(server, FixedHosts({}), 1, None, timeout=5)
    hosts = {"mine": "127.0.0.1", "other": "10.9.9.9"}
    peers = set(hosts.values())
    port = server.start(rendezvous_handler(driver, lambda host: hosts.get(host, ""), lambda: peers))
    server.init([SlotInfo("mine", 0, 0, 0, 1, 1, 1)])

    def ask(method, path, body=None, headers=None):
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request(method, path, body, headers or {})
        status = connection.getresponse().status
        connection.close()
        return status

    ask.driver, ask.peers = driver, peers
    yield ask
    driver.stop()
    assert [slot.hostname for slot in assigned[0]] == ["mine"]


def test_ranks_exchange_their_addresses(rendezvous):
    assert rendezvous("PUT", "/global/0", b"address") == 200
    assert rendezvous("GET", "/global/0") == 200
    assert rendezvous("GET", "/global/1") == 404


def test_a_rank_registers_its_notifier_for_its_own_host_only(rendezvous):
    service = codec.dumps_base64(SERVICE, to_ascii=False)
    assert rendezvous("PUT", "/worker_addresses/mine:0", service) == 200
    assert rendezvous("PUT", "/worker_addresses/other:0", service) == 403
    slots = {host: SlotInfo(host, 0, 0, 0, 1, 1, 1) for host in ("mine", "other")}
    assert rendezvous.driver.get_worker_client(slots["mine"]) is not None
    assert rendezvous.driver.get_worker_client(slots["other"]) is None


def test_a_rank_cannot_ask_for_anothers_place(rendezvous):
    assert rendezvous("GET", "/rank_and_size/other:0") == 403


def test_who_is_no_agent_gets_no_answer(rendezvous):
    rendezvous.peers.clear()
    for method in ("GET", "PUT", "DELETE"):
        assert rendezvous(method, "/global/0", b"x" if method == "PUT" else None) == 403


def test_a_large_value_is_refused_before_it_is_read(rendezvous):
    assert rendezvous("PUT", "/global/0", b"", {"Content-Length": str(2 << 20)}) == 413
