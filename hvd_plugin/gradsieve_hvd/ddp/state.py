"""What a user sets for the hook of one model."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.engine.compression_argument import settings_from
from gradsieve_hvd.engine.parameters import on_one_gpu
from gradsieve_hvd.engine.reducer import Reducer
from gradsieve_hvd.engine.tensors import require_known_dtype
from gradsieve_hvd.optimizer.paths import ExchangeName, path_named
from gradsieve_hvd.transport.torch_distributed import (
    TorchDeviceSums,
    TorchDistributedTransport,
    sums_by_nccl,
)

from .rounds import Rounds


class DdpState:
    """Settings, and from the first backward pass on the residuals, of one model's gradients.

    Residuals belong to parameters, so that it does not matter when DDP rebuilds its buckets. What is selected
    travels over gloo between CPUs, also where the model's process group is NCCL's: a group for these messages
    is made at the first backward pass (or `gradsieve_hvd.load_state_dict`), on all ranks of
    ``process_group``. Whole gradients NCCL sums in the model's own group, where it can.

    Args:
        model: the model, wrapped by DDP or not yet.
        compression: one of `gradsieve_hvd.Compression`; None for ``Compression.laplace()``.
        exchange, rank: see `gradsieve_hvd.DistributedOptimizer`.
        process_group: DDP's; None for all ranks.

    Raises:
        ConfigurationError: a setting is not allowed.
    """

    def __init__(
        self,
        model: nn.Module,
        compression: Any = None,
        *,
        exchange: ExchangeName = "allgather",
        rank: int | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self._path, self._exchange = path_named(exchange, rank), exchange
        if self._path.chooses:
            raise ConfigurationError(
                "exchange='auto' is for gradsieve_hvd.DistributedOptimizer: the hook keeps to one path. "
                "`gradsieve advise` says which one is likely to be fastest."
            )
        self.settings = self._path.applied_to(settings_from(compression))
        module = model.module if isinstance(model, DistributedDataParallel) else model
        ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        self._named = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and name not in ignored
        }
        for name, parameter in self._named.items():
            require_known_dtype(name, parameter.dtype)
        self._process_group = process_group

    @cached_property
    def rounds(self) -> Rounds:
        """The exchange of gradients; begun by all ranks together."""
        timeout = self.settings.timeout_seconds
        group = dist.new_group(
            None if self._process_group is None else dist.get_process_group_ranks(self._process_group),
            timeout=timedelta(seconds=timeout),
            backend="gloo",
            use_local_synchronization=self._process_group is not None,
        )
        transport = TorchDistributedTransport(group, timeout)
        if on_one_gpu(self._named.values()) and sums_by_nccl(self._process_group):
            transport.device_sums = TorchDeviceSums(self._process_group, timeout)
        compared = {"exchange": self._exchange, "rank": self._path.rank, "front door": "ddp_hook"}
        return Rounds(self._named, self.settings, transport, self._path, compared)

    @property
    def reducer(self) -> Reducer:
        """Where the step stands, and the residuals."""
        return self.rounds.reducer
