"""Deep Gradient Compression (Lin et al., ICLR 2018), as one would write it as a hook of
DistributedDataParallel.

A contender: nothing of what gradsieve selects, encodes or sends with is in it.
"""

# Without postponed annotations: DDP compares them with the types themselves.
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket  # mypy does not find it in torch.distributed

from gradsieve_hvd.experiments.bench.contenders import sampled_top_k

_SMALLEST = 10_000  # elements of a tensor that is compressed, as gradsieve's usual min_elements
_SEED = 5


class _Waiting(NamedTuple):
    """What a rank has of a parameter, flat: u and v of section 3.2."""

    velocity: Tensor
    residual: Tensor


class DgcState:
    """One model's settings and residuals.

    Args:
        density: kept / all of tensors with 10 000 elements or more; others travel whole.
        momentum: applied here; the optimizer must have none.
    """

    def __init__(self, density: float, momentum: float) -> None:
        self._density, self._momentum = density, momentum
        self._waiting: dict[Tensor, _Waiting] = {}
        self._generator = torch.Generator().manual_seed(_SEED)

    def selected(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Return entries to send: values, then positions, as int32 [2 * k], filled up with zeros at 0.

        1. u <- m u + gradient, v <- v + u.
        2. The selected entries of v leave; u and v are cleared there (momentum factor masking).
        """
        velocity, residual = self._of(parameter)
        velocity.mul_(self._momentum).add_(gradient)
        residual.add_(velocity)
        count = self._count(parameter)
        positions = sampled_top_k(residual.abs(), count, self._generator)
        message = torch.zeros(2 * count, dtype=torch.int32)
        message[: positions.numel()] = residual[positions].view(torch.int32)
        message[count : count + positions.numel()] = positions
        residual[positions] = 0
        velocity[positions] = 0
        return message

    def add_up(self, pairs: list[tuple[Tensor, Tensor]], arrived: list[Tensor]) -> None:
        """Overwrite the gradients of parameters with the means of what ``arrived``, a message per rank."""
        start = 0
        for parameter, gradient in pairs:
            gradient.zero_()
            count = self._count(parameter)
            for message in arrived:
                values = message[start : start + count].view(torch.float32)
                gradient.index_add_(0, message[start + count : start + 2 * count], values)
            gradient.div_(len(arrived))
            start += 2 * count

    def apply_momentum(self, pairs: list[tuple[Tensor, Tensor]], mean: Tensor) -> None:
        """Overwrite gradients that have travelled whole, end to end in ``mean``, with their velocities."""
        for parameter, gradient in pairs:
            part, mean = mean[: gradient.numel()], mean[gradient.numel() :]
            gradient.copy_(self._of(parameter).velocity.mul_(self._momentum).add_(part))

    def _of(self, parameter: Tensor) -> _Waiting:
        if parameter not in self._waiting:
            self._waiting[parameter] = _Waiting(*torch.zeros(2, parameter.numel()))
        return self._waiting[parameter]

    def _count(self, parameter: Tensor) -> int:
        return max(1, round(self._density * parameter.numel()))


def dgc_hook(state: DgcState, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Exchange a bucket: what is selected of large tensors in one gather, small ones in one sum."""
    pairs = list(zip(bucket.parameters(), (each.flatten() for each in bucket.gradients()), strict=True))
    large = [pair for pair in pairs if pair[1].numel() >= _SMALLEST]
    small = [pair for pair in pairs if pair[1].numel() < _SMALLEST]
    arrived: list[Tensor] = []
    works: list[dist.Work] = []
    if large:
        message = torch.cat([state.selected(*pair) for pair in large])
        arrived = [torch.empty_like(message) for _ in range(dist.get_world_size())]
        works.append(dist.all_gather(arrived, message, async_op=True))
    whole = torch.cat([gradient for _, gradient in small]) if small else torch.empty(0)
    if small:
        works.append(dist.all_reduce(whole, async_op=True))

    def finish(_: torch.futures.Future[list[torch.futures.Future[Tensor]]]) -> Tensor:
        state.add_up(large, arrived)
        state.apply_momentum(small, whole / dist.get_world_size())
        buffer = bucket.buffer()
        return buffer.copy_(torch.cat([gradient for _, gradient in pairs]))

    return torch.futures.collect_all([work.get_future() for work in works]).then(finish)
