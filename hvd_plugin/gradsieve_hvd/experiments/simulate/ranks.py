"""One rank of a simulated training: the engine, without a network in between."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from gradsieve import Compression, CompressionConfig, ImportanceConfig, LossRecorder, decode
from gradsieve_hvd.engine.compressed_layer import CompressedLayer
from gradsieve_hvd.engine.reducer import Reducer
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.engine.tensor_reduction import TensorReduction
from gradsieve_hvd.transport.messages import Messages

from .board import Board

_NOTHING = Compression.topk(min_elements=sys.maxsize)


class SimulatedRank:
    """One rank's `Reducer`, as a process of its own would have it, over a model that all ranks share.

    Args:
        config: what is compressed; None sends everything.
        model: the ranks'.
        messages: to the other ranks; None for a rank that is alone.
        clip_global_norm: see `Settings`.

    recorder: where this rank's loss puts its samples'. Of the last step, sent_bytes: payloads with headers
    and dense gradients; payload_bytes: payloads alone.
    """

    def __init__(
        self,
        config: CompressionConfig | None,
        model: nn.Module,
        messages: Messages | None = None,
        clip_global_norm: float | None = None,
    ) -> None:
        self.recorder = LossRecorder()
        if isinstance(config, ImportanceConfig):  # of this rank's samples, not of all ranks'
            config = dataclasses.replace(config, recorder=self.recorder)
        settings = Settings(
            config=config or _NOTHING,
            nonfinite="propagate",  # to the metric, where it is seen
            check_weights_every=None,  # there is one model
            clip_global_norm=clip_global_norm,
        )
        alone = messages or Board(1).rank(0)
        self._reducer = Reducer(settings, partial(_sorted_parameters, model), alone, averages=True)
        self._tensors = TensorReduction(self._reducer)
        self._parameters = dict(model.named_parameters())

    @property
    def layers(self) -> dict[str, CompressedLayer]:
        """A compressor per compressed parameter, by name."""
        states = self._reducer.states.values()
        return {state.name: state.layer for state in states if state.layer is not None}

    @property
    def sent_bytes(self) -> int:
        """See the class."""
        return self.payload_bytes + self._reducer.counter.last.dense_bytes

    @property
    def payload_bytes(self) -> int:
        """See the class."""
        return self._reducer.counter.last.payload_bytes

    def send(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what the others see of each gradient, in its shape; ``gradients`` are not mutated."""
        return {name: self._send(name, gradient) for name, gradient in gradients.items()}

    def _send(self, name: str, gradient: Tensor) -> Tensor:
        state = self._reducer.state_of(name, self._parameters[name])
        if state.layer is None:
            factor = self._tensors.begin_dense(state, gradient)
            return gradient if factor == 1.0 else gradient * factor
        payload = self._tensors.payload(state, state.layer, gradient)
        arrived = torch.zeros(gradient.numel())
        decode(payload, gradient.numel()).add_into(arrived)
        return arrived.view(gradient.shape)

    def receive(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Take over the means of what all ranks sent, end the step, and return what the optimizer applies."""
        applied = {}
        for name, mean in means.items():
            state = self._reducer.states[name]
            applied[name] = mean
            if state.layer is None:
                applied[name] = torch.empty_like(mean)
                self._tensors.end_dense(state, mean, applied[name])
            else:
                self._reducer.end(state, mean)
        self._reducer.commit()
        return applied


def _sorted_parameters(model: nn.Module) -> list[tuple[str, Parameter]]:
    return sorted(model.named_parameters())
