"""The weights of a simulated server: what its releases do, and what pushes come to.

Shapes: S settings that are trained at once, N parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gradsieve import Compression, Decision, LayerCompressor, Payload, Refusal, SparseGradient
from gradsieve_hvd.server.events import Contribution
from gradsieve_hvd.server.release import Given, combine

from .perceptron import Array


class Weights:
    """SGD with momentum per release; every setting has its own row.

    Args:
        initial: [N], where all settings start. rates, momenta: [S]. workers: P.
    """

    def __init__(
        self, initial: Array, rates: Sequence[float], momenta: Sequence[float], workers: int
    ) -> None:
        self.values_SN: Array = np.repeat(initial[None], len(rates), axis=0)
        self._velocity_SN: Array = np.zeros_like(self.values_SN)
        self._rates = np.asarray(rates, dtype=np.float32)[:, None]
        self._momenta = np.asarray(momenta, dtype=np.float32)[:, None]
        self._workers = workers

    def release(self, contributions: Sequence[Contribution], gradients: dict[int, Array]) -> None:
        """Step by (1/P) of what a real shard makes of the gradients; see `combine`.

        gradients: [S, N] by number of the push; those of the contributions are taken out.
        """
        given = [Given(_whole(gradients.pop(each.number)), each.weight, each.gated) for each in contributions]
        # The rule looks at each entry by itself: all settings are one long tensor to it.
        total_SN: Array = combine(given, self.values_SN.size).applied.numpy().reshape(self.values_SN.shape)
        self._velocity_SN *= self._momenta
        self._velocity_SN += total_SN / np.float32(self._workers)
        # A new array: workers go on with the one they were sent.
        self.values_SN = self.values_SN - self._rates * self._velocity_SN


def _whole(gradient_SN: Array) -> Payload:
    """Return what a push with every entry arrives as; memory is shared."""
    values = torch.from_numpy(gradient_SN.reshape(-1))
    return Payload(values.numel(), epoch=0, refusal=Refusal.NONE, indices=None, values=values)


class Compressors:
    """One worker's compressors, one per setting, over all of its gradient at once.

    Args:
        density: 1 sends everything as it is.
    """

    def __init__(self, settings: int, parameters: int, density: float) -> None:
        self._decision = Decision(density)
        rows = settings if density < 1 else 0
        config = Compression.topk(density=density) if rows else None
        self._layers = [LayerCompressor(config, parameters) for _ in range(rows)] if config else []

    def sent(self, gradient_SN: Array) -> Array:
        """Return what a push carries of a gradient, [S, N]; the rest, zero here, stays in residuals."""
        if not self._layers:
            return gradient_SN
        sent_SN = np.zeros_like(gradient_SN)
        for row, layer, gradient in zip(sent_SN, self._layers, gradient_SN, strict=True):
            selected = layer.select(torch.from_numpy(gradient), self._decision)
            if isinstance(selected, SparseGradient):  # else it diverges, and stays where it is
                selected.add_into(torch.from_numpy(row))
                layer.commit()
        return sent_SN
