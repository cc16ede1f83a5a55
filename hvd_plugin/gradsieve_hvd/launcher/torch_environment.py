"""What ``torch.distributed`` wants to know on a rank, by torchrun's names."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping

from gradsieve_hvd.launcher.addresses import INTERFACE, host_address
from gradsieve_hvd.launcher.job import Job

_USUAL_PORT = 29500
# Below those that Linux gives to outgoing connections, which could take the port before rank 0 listens.
_PORTS = range(20_000, 32_768)
_NUMBERS = {"RANK": "OMPI_COMM_WORLD_RANK", "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK"}


def torch_environment(job: Job, base: Mapping[str, str], port: int) -> dict[str, str]:
    """Return what is the same on all ranks: with it ``init_process_group()`` needs no arguments.

    Args:
        job: the job. On an emulated link every rank has a host of its own.
        base: the user's environment, whose MASTER_PORT and GLOO_SOCKET_IFNAME win; no other value than ours
            of the rest could be right.
        port: on which rank 0 is to listen.
    """
    linked = job.link is not None
    return {
        "MASTER_PORT": base.get("MASTER_PORT", str(port)),
        "GLOO_SOCKET_IFNAME": base.get("GLOO_SOCKET_IFNAME", INTERFACE if linked else "lo"),
        "MASTER_ADDR": host_address(0) if linked else "127.0.0.1",
        "WORLD_SIZE": str(job.ranks),
        "LOCAL_WORLD_SIZE": "1" if linked else str(job.ranks),
    }


def rank_numbers(rank: int, job: Job) -> dict[str, str]:
    """Return what differs from rank to rank."""
    return {"RANK": str(rank), "LOCAL_RANK": "0" if job.link is not None else str(rank)}


def numbered(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command of a rank under ``mpirun``, which alone knows its number, with `rank_numbers` set."""
    exports = " ".join(f'{name}="${source}"' for name, source in _NUMBERS.items())
    return ("/bin/sh", "-c", f'export {exports}; exec "$0" "$@"', *command)


def free_port(job: Job) -> int:
    """Return a port on which nobody listens where rank 0 is going to run: an emulated host is a new one."""
    if job.link is not None:
        return _USUAL_PORT
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port from {_PORTS[0]} to {_PORTS[-1]} is free on 127.0.0.1")
