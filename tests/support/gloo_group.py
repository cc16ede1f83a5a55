"""A process group of torch.distributed among Horovod's ranks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TIMEOUT = dt.timedelta(seconds=60)


@contextmanager
def gloo(hvd: Any, backend: str = "gloo") -> Iterator[None]:
    """Have the group within: other scenarios share these processes, and some need to be without it.

    Rank 0 listens before it says where, so that nobody else takes the port meanwhile. All ranks have each
    other before one may leave: a rank whose connection has been made is not one whose peer has accepted it,
    and where it leaves before, its peer finds it closed.
    """
    import torch.distributed as dist

    rank, size = hvd.rank(), hvd.size()
    address = "127.0.0.1"
    store = None
    if rank == 0:
        store = dist.TCPStore(address, 0, size, is_master=True, timeout=_TIMEOUT, wait_for_workers=False)
    # Horovod names what is sent after its type: it must be a number on all ranks.
    port = hvd.broadcast_object(0 if store is None else store.port)
    if store is None:
        store = dist.TCPStore(address, port, size, is_master=False, timeout=_TIMEOUT)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
    try:
        dist.barrier()
        yield
    finally:
        dist.destroy_process_group()
