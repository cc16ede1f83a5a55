"""Which transport carries sparse gradients: one that sends to a single rank, where there is one."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from dataclasses import dataclass
from typing import Any, Protocol

from .base import SummingOnDevices, Transport
from .horovod import HorovodDeviceSums, HorovodTransport
from .horovod_allgather import HorovodMessages

_log = logging.getLogger("gradsieve.transport")


@dataclass(frozen=True)
class Chosen:
    """transport: to the ranks of a process set. name: mpi4py, torch.distributed or Horovod. why: in words."""

    transport: Transport
    name: str
    why: str


class _Numbers:
    """next: the lowest number that no transport of this process has had."""

    next = 0


def choose_transport(process_set: Any, timeout: float = 300.0, *, on_gpu: bool = False) -> Chosen:
    """Return the best transport that all ranks of a process set have, one that nobody else uses.

    All of them call it, after ``hvd.init()`` and before they start a thread that communicates.

    1. Each rank finds out why it cannot use mpi4py, and why not ``torch.distributed``: messages between two
       ranks are quicker than Horovod's collectives, of which each must wait for all ranks.
    2. They tell each other, as all must use the same one; and agree on a number, which tells transports apart
       that are used at the same time: some may have made more of them, for other process sets or before a
       reset of elastic training.
    3. Take the first that no rank objects to; else Horovod's collectives.
    4. Whole gradients are summed on GPUs if all ranks have theirs there, and Horovod was built with NCCL.

    Args:
        process_set: Horovod's, initialised, with this rank in it.
        timeout: how long a message may take, in seconds.
        on_gpu: whether this rank's gradients lie on one GPU.

    Raises:
        ExchangeError: a rank does not take part.
    """
    mine = {"mpi4py": _why_not_mpi(), "torch.distributed": _why_not_torch(process_set)}
    messages = HorovodMessages(process_set, timeout)
    sums = on_gpu and _has_nccl()
    said = json.dumps({"obstacles": mine, "number": _Numbers.next, "device sums": sums}).encode()
    told = [json.loads(each) for each in messages.tell(said, "transport").wait()]
    every = [each["obstacles"] for each in told]
    number = max(each["number"] for each in told)
    _Numbers.next = number + 1
    obstacles = {name: _obstacle(name, every) for name in mine}
    library = next((each for each, obstacle in obstacles.items() if not obstacle), "Horovod")
    why = "; ".join(f"not {each}: {obstacle}" for each, obstacle in obstacles.items() if obstacle)
    if library == "torch.distributed":
        why = f"it sends messages to single ranks ({why})"
    elif library == "mpi4py":
        why = "it sends to single ranks"
    transport = _made(library, process_set, timeout, number)
    if all(each["device sums"] for each in told):
        transport.device_sums = HorovodDeviceSums(process_set, timeout, f"chosen.{number}")
        why += "; whole gradients are summed on GPUs, by NCCL"
    if process_set.rank() == 0:
        _log.info("gradients travel by %s: %s", library, why)
    return Chosen(transport, library, why)


def _has_nccl() -> bool:
    import horovod.torch as hvd

    return bool(hvd.nccl_built())


class _Made(Transport, SummingOnDevices, Protocol):
    """Any of the transports here."""


def _made(library: str, process_set: Any, timeout: float, number: int) -> _Made:
    if library == "mpi4py":
        from .mpi import MpiTransport

        return MpiTransport(process_set.ranks, timeout)
    if library == "torch.distributed":
        import torch.distributed as dist

        from .torch_distributed import TorchDistributedTransport

        return TorchDistributedTransport(dist.new_group(backend="gloo"), timeout)
    return HorovodTransport(process_set, timeout, f"chosen.{number}")


def _obstacle(name: str, every: list[dict[str, str]]) -> str:
    return next((f"rank {rank}: {each[name]}" for rank, each in enumerate(every) if each[name]), "")


def _why_not_mpi() -> str:
    import horovod.torch as hvd

    if not hvd.mpi_enabled():
        return "Horovod does not run on MPI here"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    if "mpi4py.MPI" not in sys.modules:
        import mpi4py

        # Horovod has initialised its MPI. If mpi4py was built for another one, that must not be started.
        mpi4py.rc.initialize = False
    from .mpi import why_unusable, world

    if why := why_unusable():
        return why
    if world() != (hvd.rank(), hvd.size()):
        return "Horovod was initialised with some of MPI's ranks"
    return ""


def _why_not_torch(process_set: Any) -> str:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return "it is not initialised"
    if "gloo" not in str(dist.get_backend_config()):
        return "it has no backend for CPUs (gloo)"
    if (dist.get_rank(), dist.get_world_size()) != (process_set.rank(), process_set.size()):
        return "its ranks are not Horovod's"
    return ""
