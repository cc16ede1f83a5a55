"""Horovod's elastic driver and rendezvous server, without their habit of unpickling what the network brings.

The rendezvous is plain HTTP, as Horovod's ranks expect it. Here it answers only the addresses of the job's
own agents, and what a rank says about its notification service is read opcode by opcode, never executed.
"""

from __future__ import annotations

import base64
import logging
import pickletools
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cloudpickle
from horovod.runner.common.util import secret
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.rendezvous import (
    GET_RANK_AND_SIZE,
    PUT_WORKER_ADDRESSES,
    create_rendezvous_handler,
)
from horovod.runner.elastic.worker import HostsUpdatedRequest
from horovod.runner.http.http_server import RendezvousHandler, RendezvousServer

from gradsieve_hvd.control.fields import Refused

_MOST_BYTES = 1 << 20
_FORBIDDEN, _TOO_LARGE, _UNAVAILABLE = 403, 413, 503
_NOTIFY_SECONDS = 5.0
_ANSWER_BYTES, _MOST_ANSWERS = 1 << 16, 16
_NUMBERS = ("BININT", "BININT1", "BININT2")
_BYTES = ("SHORT_BINBYTES", "BINBYTES")
_CONTAINERS = (
    *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "SETITEM", "SETITEMS", "APPEND", "APPENDS"),
    *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "SHORT_BINUNICODE", "BINUNICODE"),
)
_log = logging.getLogger("gradsieve.coordinator")

AddressOf = Callable[[str], str]
"""IP address of the agent behind a host's name among Horovod's; empty if there is none."""


def notification_service(text: bytes) -> tuple[int, bytes]:
    """Port and key in what a rank says about its notification service; no part of it is executed.

    It is a pickled ``({interface: [(address, port)]}, key)`` in base64, with one port for all interfaces.

    Raises:
        Refused: it holds anything but containers, strings, whole numbers and one key.
    """
    ports: set[int] = set()
    keys: list[bytes] = []
    try:
        for opcode, argument, _ in pickletools.genops(base64.b64decode(text, validate=True)):
            if opcode.name in _NUMBERS and isinstance(argument, int):
                ports.add(argument)
            elif opcode.name in _BYTES and isinstance(argument, bytes):
                keys.append(argument)
            elif opcode.name not in _CONTAINERS:
                raise Refused(f"a rank's notification service holds {opcode.name}: only plain data is read")
    except (ValueError, IndexError) as error:
        raise Refused(f"a rank's notification service cannot be read: {error}") from error
    if len(ports) != 1 or len(keys) != 1 or not 0 < min(ports) < 65536:
        raise Refused("a rank's notification service must have one port and one key")
    return ports.pop(), keys[0]


class Notifier:
    """Tells rank 0 that hosts came or went, and believes nothing that it answers.

    Args:
        address: IP address of the rank's host.
        service: port and key of its notification service.
    """

    def __init__(self, address: str, service: tuple[int, bytes]) -> None:
        self._address = address
        self._port, self._key = service

    def notify_hosts_updated(self, timestamp: int, update_result: int) -> None:
        """Send the request of Horovod's own client, signed with the rank's key; wait until it was taken.

        The answer is read to its end and dropped: its sender would tell the user's log of a reset connection.
        """
        message = cloudpickle.dumps(HostsUpdatedRequest(timestamp, update_result))
        digest = secret.compute_digest(self._key, message)
        with socket.create_connection((self._address, self._port), _NOTIFY_SECONDS) as channel:
            channel.sendall(digest + struct.pack("i", len(message)) + message)
            for _ in range(_MOST_ANSWERS):
                if not channel.recv(_ANSWER_BYTES):
                    break


class Driver(ElasticDriver):  # type: ignore[misc]
    """Horovod's driver, which reaches ranks through :class:`Notifier`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._notifiers: dict[tuple[str, int], Notifier] = {}
        super().__init__(*arguments, **options)

    def register_notifier(self, host: str, slot: int, notifier: Notifier) -> None:
        """Use ``notifier`` for the rank on ``slot`` of ``host``."""
        self._notifiers[host, slot] = notifier

    def get_worker_client(self, slot_info: SlotInfo) -> Notifier | None:
        """What Horovod's driver asks for when hosts have changed."""
        return self._notifiers.get((slot_info.hostname, slot_info.local_rank))


class Rendezvous(RendezvousServer):  # type: ignore[misc]
    """Horovod's rendezvous server; it tells of every new assignment of ranks.

    Args:
        assigned: called in some thread with the assignment.
    """

    def __init__(self, assigned: Callable[[list[SlotInfo]], None]) -> None:
        super().__init__()
        self._assigned = assigned

    def init(self, host_alloc_plan: list[SlotInfo]) -> None:
        """Forget the old assignment's keys, and expect those of the new one."""
        super().init(host_alloc_plan)
        self._assigned(host_alloc_plan)

    def stop(self) -> None:
        """Stop, and give the port back, which Horovod's server keeps."""
        super().stop()
        self._httpd.server_close()


class _GuardedHandler(RendezvousHandler):  # type: ignore[misc]
    """Goes before Horovod's handler: asks who calls, and reads what that one would unpickle."""

    driver: Driver
    address_of: AddressOf
    peers: Callable[[], set[str]]

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        if not self._is_allowed():
            return
        try:
            super().do_GET()
        except (RuntimeError, ValueError, KeyError) as error:
            # A rank asked while the driver ended, or for nonsense.
            _log.info("rendezvous: %s for %s", error, self.path)
            with suppress(OSError):
                self.send_status_code(_UNAVAILABLE)

    def do_PUT(self) -> None:  # noqa: N802 - http.server's name
        if self._is_allowed():
            super().do_PUT()

    def do_DELETE(self) -> None:  # noqa: N802 - http.server's name
        if self._is_allowed():
            super().do_DELETE()

    def _is_allowed(self) -> bool:
        peer, words = self.client_address[0], self.path.split("/")
        length = self.headers.get("Content-Length") or "0"
        if not length.isdecimal() or int(length) > _MOST_BYTES:
            self.send_status_code(_TOO_LARGE)
            return False
        for_a_host = len(words) == 3 and words[1] in (GET_RANK_AND_SIZE, PUT_WORKER_ADDRESSES)
        host = words[-1].rpartition(":")[0]
        if peer in self.peers() and (not for_a_host or self.address_of(host) == peer):
            return True
        _log.warning("rendezvous: %s from %s refused", self.path, peer)
        self.send_status_code(_FORBIDDEN)
        return False

    def _put_value(self, scope: str, key: str, value: bytes) -> None:
        if scope != PUT_WORKER_ADDRESSES:
            super()._put_value(scope, key, value)
            return
        host, _, slot = key.rpartition(":")
        try:
            service = notification_service(value)
            self.driver.register_notifier(host, int(slot), Notifier(self.client_address[0], service))
        except ValueError as error:
            _log.warning("rendezvous: %s", error)


def rendezvous_handler(driver: Driver, address_of: AddressOf, peers: Callable[[], set[str]]) -> type:
    """The class of request handlers for :meth:`Rendezvous.start`.

    Args:
        driver: knows the ranks.
        address_of: a rank may speak only for the host at its own address.
        peers: IP addresses of all agents; nobody else is answered.
    """
    attributes = {"driver": driver, "address_of": staticmethod(address_of), "peers": staticmethod(peers)}
    return type("Handler", (_GuardedHandler, create_rendezvous_handler(driver)), attributes)
