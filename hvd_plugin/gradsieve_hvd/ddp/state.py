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
        process_group: DDP's; None for that of a model that is wrapped already, else for all ranks.

    Raises:
        ConfigurationError: a setting is not allowed; or the wrapped model has other ranks than
            ``process_group``, or skips what no rank uses, of which a hook is not told.
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
        module, self._may_be_unused = model, False
        if isinstance(model, DistributedDataParallel):
            process_group = _group_of(model, process_group)
            module, self._may_be_unused = model.module, model.find_unused_parameters
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
        unused = self._may_be_unused
        return Rounds(self._named, self.settings, transport, self._path, compared, may_be_unused=unused)

    @property
    def reducer(self) -> Reducer:
        """Where the step stands, and the residuals."""
        return self.rounds.reducer


def _group_of(model: DistributedDataParallel, asked: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """Return the group that the model's gradients are averaged in; None for the default one."""
    if getattr(model, "skip_all_reduce_unused_params", False):
        raise ConfigurationError(
            "DistributedDataParallel(skip_all_reduce_unused_params=True) does not hand over all of its "
            "buckets, so that others would wait for ever: leave it out"
        )
    ranks = dist.get_process_group_ranks(model.process_group)
    if asked is not None and dist.get_process_group_ranks(asked) != ranks:
        raise ConfigurationError(
            f"process_group has ranks {dist.get_process_group_ranks(asked)}, and the model's gradients are "
            f"averaged over ranks {ranks}: give DdpState the model's group, or none"
        )
    if asked is not None:
        return asked
    return None if model.process_group is dist.group.WORLD else model.process_group
