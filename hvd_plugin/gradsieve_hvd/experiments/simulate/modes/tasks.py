"""What is trained while modes are simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gradsieve_hvd.experiments.tasks.charlm import standard_library_text

from .perceptron import Array, Perceptron

_JUDGED = 512  # samples behind a loss
_CHARACTERS = 200_000
_CONTEXT = 6
_SYMBOLS = 64


@dataclass(frozen=True, slots=True)
class ModeTask:
    """Training data, a model and the loss at which the clock stops.

    batch: samples of a nominal batch. inputs: [samples, D], or codes [samples, context] that stand for
    one-hot rows of ``symbols`` each.
    """

    model: Perceptron
    inputs: NDArray[np.generic]
    labels: NDArray[np.int64]
    batch: int
    target: float
    symbols: int = 0

    def samples(self, indices: NDArray[np.int64]) -> tuple[Array, NDArray[np.int64]]:
        """Return inputs [B, D] and labels [B]."""
        inputs = self.inputs[indices]
        if self.symbols:
            one_hot = np.eye(self.symbols, dtype=np.float32)[inputs.astype(np.int64)]
            return one_hot.reshape(len(indices), -1), self.labels[indices]
        return inputs.astype(np.float32), self.labels[indices]

    def judged(self) -> tuple[Array, NDArray[np.int64]]:
        """Return the samples that losses are measured on: evenly spread over the training data."""
        return self.samples(np.linspace(0, len(self.labels) - 1, _JUDGED).astype(np.int64))


def digits() -> ModeTask:
    """Handwritten digits (scikit-learn), 9 010 parameters."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    inputs = (images[order] / 16.0 - 0.5).astype(np.float32)
    return ModeTask(Perceptron(64, 120, 10), inputs, labels[order].astype(np.int64), batch=16, target=0.05)


def character_model() -> ModeTask:
    """The next of 64 characters from six, on the standard library's source: 45 000 parameters."""
    codes = np.frombuffer(standard_library_text()[:_CHARACTERS].encode("ascii", "replace"), dtype=np.uint8)
    folded = (codes % _SYMBOLS).astype(np.uint8)  # upper and lower case share a symbol
    windows = np.lib.stride_tricks.sliding_window_view(folded, _CONTEXT + 1)
    model = Perceptron(_CONTEXT * _SYMBOLS, 100, _SYMBOLS)
    labels = windows[:, -1].astype(np.int64)
    return ModeTask(model, windows[:, :-1], labels, batch=16, target=2.3, symbols=_SYMBOLS)


MODE_TASKS: Mapping[str, Callable[[], ModeTask]] = MappingProxyType(
    {"digits": digits, "charlm": character_model}
)
