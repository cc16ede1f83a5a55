"""One tensor's part in a round: its pseudo-gradient, what of that is sent, and what waits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from gradsieve import CompressionConfig, Decision, LayerCompressor, Refusal, SparseGradient
from gradsieve.decayed_residual import DecayedResidual
from gradsieve.selectors import TopKSelector


class PseudoGradient:
    """A parameter, its value when the round began, and the residual of their differences.

    Memory: a copy of the parameter, and two fp32 buffers of its N elements.

    parameter: of this rank. compressor: selects from the differences.
    """

    def __init__(self, name: str, parameter: Parameter, config: CompressionConfig, decay: float) -> None:
        elements, device = parameter.numel(), parameter.device
        compresses = config.compresses(name, elements)
        self.parameter = parameter
        self.compressor = LayerCompressor(
            config,
            elements,
            device,
            name,
            selector=None if compresses else TopKSelector(),
            residual=DecayedResidual(elements, device, decay=decay),
        )
        self._decision = Decision(config.density if compresses else 1.0)
        self._start = parameter.detach().clone()
        self._wide = torch.promote_types(parameter.dtype, torch.float32)  # of differences

    @property
    def start(self) -> Tensor:
        """The parameter when the round began; the same bits on every rank."""
        return self._start

    def begin(self) -> None:
        """A round begins: remember the parameter."""
        self._start.copy_(self.parameter.detach())

    def select(self) -> SparseGradient | Refusal:
        """Return what is to be sent of start - now and the residual, on the CPU, or why nothing is.

        Pending until ``compressor.commit()``; zeros are left out.
        """
        difference = self._start.to(self._wide) - self.parameter.detach().to(self._wide)
        selected = self.compressor.select(difference.to(torch.float32), self._decision)
        return selected if isinstance(selected, Refusal) else selected.without_zeros().cpu()

    def abstain(self) -> SparseGradient:
        """Return nothing: this rank has taken no step. The residual stays as it is."""
        return self.compressor.abstain().cpu()

    def would_overflow(self, summands: Sequence[SparseGradient]) -> bool:
        """Whether the sum may not fit the parameter's type."""
        most = sum(each.largest for each in summands)
        return not most < 0.99 * torch.finfo(self.parameter.dtype).max

    def apply(self, summands: Sequence[SparseGradient], factor: float) -> None:
        """Set the parameter to start - factor * sum. Product and difference are rounded one after the other,
        so that all processors get the same bits. What nobody has changed keeps its bits.
        """
        total = torch.zeros(self._start.numel(), dtype=torch.float32, device=self._start.device)
        for each in summands:
            each.add_into(total, factor)
        now = self._start.to(self._wide).reshape(-1) - total.to(self._wide)
        with torch.no_grad():
            self.parameter.copy_(now.view(self._start.shape))

    def undo(self) -> None:
        """Set the parameter back to what it was when the round began, and the residual with it."""
        self.compressor.rollback()
        with torch.no_grad():
            self.parameter.copy_(self._start)
