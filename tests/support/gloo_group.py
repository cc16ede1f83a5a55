"""A process group of torch.distributed among Horovod's ranks."""

from __future__ import annotations

import datetime as dt
import socket
from typing import Any


def start_gloo(hvd: Any) -> None:
    import torch.distributed as dist

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = hvd.broadcast_object(free.getsockname()[1])
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=hvd.rank(),
        world_size=hvd.size(),
        timeout=dt.timedelta(seconds=60),
    )
