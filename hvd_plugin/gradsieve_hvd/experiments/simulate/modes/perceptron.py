"""A small model in numpy, trained with several learning rates at once: gradients of 0.1 ms, not of 1 ms.

Shapes: S settings (learning rate and momentum), N parameters, B samples, D inputs, H hidden units, C classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class Perceptron:
    """Tanh units between two linear layers, cross-entropy; the weights of a setting are one flat row.

    Args:
        inputs, hidden, classes: D, H, C.
    """

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        self._shapes = ((inputs, hidden), (1, hidden), (hidden, classes), (1, classes))
        ends = np.cumsum([rows * columns for rows, columns in self._shapes]).tolist()
        self._slices = [slice(*pair) for pair in zip([0, *ends], ends, strict=False)]
        self.parameters: int = ends[-1]

    def initial(self, seed: int) -> Array:
        """Return the weights of this seed, [N]: normal with variance 1 / inputs, biases zero."""
        random = np.random.default_rng(seed)
        weights = np.zeros(self.parameters, dtype=np.float32)
        for index in (0, 2):
            rows, columns = self._shapes[index]
            drawn = random.standard_normal(rows * columns) / np.sqrt(rows)
            weights[self._slices[index]] = drawn.astype(np.float32)
        return weights

    def loss(self, weights_SN: Array, inputs_BD: Array, labels_B: NDArray[np.int64]) -> Array:
        """Return the mean loss of every setting, [S]."""
        _, log_probabilities_SBC = self._forward(weights_SN, inputs_BD)
        losses_SB = -log_probabilities_SBC[:, np.arange(len(labels_B)), labels_B]
        mean_S: Array = losses_SB.mean(axis=1)
        return mean_S

    def gradient_sum(self, weights_SN: Array, inputs_BD: Array, labels_B: NDArray[np.int64]) -> Array:
        """Return the gradient of the summed loss, [S, N]; nothing is mutated."""
        hidden_SBH, log_probabilities_SBC = self._forward(weights_SN, inputs_BD)
        error_SBC = np.exp(log_probabilities_SBC)
        error_SBC[:, np.arange(len(labels_B)), labels_B] -= 1
        _, _, second_SHC, _ = self._layers(weights_SN)
        back_SBH = (error_SBC @ second_SHC.transpose(0, 2, 1)) * (1 - hidden_SBH**2)
        gradient_SN = np.empty_like(weights_SN)
        parts = (
            inputs_BD.T @ back_SBH,
            back_SBH.sum(axis=1),
            hidden_SBH.transpose(0, 2, 1) @ error_SBC,
            error_SBC.sum(axis=1),
        )
        for place, part in zip(self._slices, parts, strict=True):
            gradient_SN[:, place] = part.reshape(len(weights_SN), -1)
        return gradient_SN

    def _layers(self, weights_SN: Array) -> list[Array]:
        settings = len(weights_SN)
        return [
            weights_SN[:, place].reshape(settings, *shape)
            for place, shape in zip(self._slices, self._shapes, strict=True)
        ]

    def _forward(self, weights_SN: Array, inputs_BD: Array) -> tuple[Array, Array]:
        first, first_bias, second, second_bias = self._layers(weights_SN)
        hidden_SBH = np.tanh(inputs_BD @ first + first_bias)
        logits_SBC = hidden_SBH @ second + second_bias
        logits_SBC -= logits_SBC.max(axis=2, keepdims=True)
        sums = np.log(np.exp(logits_SBC).sum(axis=2, keepdims=True))
        return hidden_SBH, logits_SBC - sums
