"""What is sent of one gradient, and what the sum over all ranks makes of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from gradsieve import Payload, Refusal, SparseGradient
from gradsieve.kernels.magnitude import all_finite
from gradsieve_hvd.exchange.lowrank import TensorSum

from .compressed_layer import CompressedLayer
from .factored_layer import FactoredLayer
from .observer import Submitted
from .parameters import ParameterState, Phase
from .reducer import Reducer
from .tensors import own_memory, sum_into


class TensorReduction:
    """One gradient's way out and back within the step of a `Reducer`.

    A frozen parameter (``requires_grad=False``) takes part with nothing, so that ranks that freeze other
    layers than their peers neither hang nor part. If no rank sent anything for it, it is *held*: it must not
    be updated.

    A gradient that is given is overwritten with the sum later; one whose elements share memory gets memory of
    its own first.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer

    # -- out --

    def payload(self, state: ParameterState, layer: CompressedLayer, gradient: Tensor) -> Tensor:
        """Return what is sent of a gradient to be compressed, as uint8 [bytes]: `select`, then encode."""
        began = time.monotonic()
        payload = layer.encode(self._select(state, layer, gradient))
        self._submitted_sparse(state, layer, gradient, payload.numel(), began)
        return payload

    def select(
        self, state: ParameterState, layer: CompressedLayer, gradient: Tensor
    ) -> SparseGradient | Refusal:
        """Return what is to be sent of a gradient to be compressed, on its device, or why nothing is: clip
        it, add the residual, select. A refusal is told to the other ranks before the step is taken.
        """
        began = time.monotonic()
        sent = self._select(state, layer, gradient)
        if isinstance(sent, Refusal):
            self._reducer.nonfinite.add_local(state.name)
        self._submitted_sparse(state, layer, gradient, 0, began)
        return sent

    def _select(
        self, state: ParameterState, layer: CompressedLayer, gradient: Tensor
    ) -> SparseGradient | Refusal:
        factor = self._begin_compressed(state, gradient)
        if factor is None:
            return layer.abstain()
        gradient, factor = _with_momentum(state, gradient, factor)
        measure = self._reducer.measures_energy
        return layer.select(gradient, step=self._reducer.step, unscale=factor, measure=measure)

    def begin_whole(
        self, state: ParameterState, layer: CompressedLayer | FactoredLayer, gradient: Tensor
    ) -> Tensor:
        """Return all that is to be sent of a gradient (fp32 [N], flat), for an exchange that takes every
        element: the clipped gradient and the residual. It is valid as ``layer.whole`` says.
        """
        began = time.monotonic()
        factor = self._begin_compressed(state, gradient)
        layer.rollback()
        if isinstance(layer, CompressedLayer):
            layer.note_density(self._reducer.step)
        if factor is None:
            sent = layer.whole.abstain()
        else:
            sent = layer.whole.begin(*_with_momentum(state, gradient, factor))
        if isinstance(layer, CompressedLayer):
            self._note_if_not_finite(state, sent)
        size = gradient.numel() * gradient.element_size()
        elements = gradient.numel() if state.layer is layer and factor is not None else 0
        took = time.monotonic() - began
        self._reducer.observers.submitted(Submitted(state.name, size, 0, elements, elements, took))
        return sent

    def _note_if_not_finite(self, state: ParameterState, sent: Tensor) -> None:
        if not all_finite(sent):
            self._reducer.nonfinite.add_local(state.name)

    def _begin_compressed(self, state: ParameterState, gradient: Tensor) -> float | None:
        """Return the factor that unscales, clips and weighs a gradient; None if nothing is sent of it."""
        own_memory(gradient)
        state.phase, state.scale = Phase.IN_FLIGHT, self._reducer.settings.loss_scale()
        if self._abstains(state):
            self._reducer.clipping.abstain(gradient.numel())
            return None
        factor = self._reducer.clipping.factor(state.name, gradient) * self._reducer.weight
        return factor / state.scale

    def _submitted_sparse(
        self,
        state: ParameterState,
        layer: CompressedLayer,
        gradient: Tensor,
        payload_bytes: int,
        began: float,
    ) -> None:
        took = time.monotonic() - began
        if self._abstains(state):
            sent = Submitted(state.name, 0, payload_bytes, seconds=took)
        else:
            size = gradient.numel() * gradient.element_size()
            sent = Submitted(state.name, size, payload_bytes, gradient.numel(), layer.kept, took)
        self._reducer.observers.submitted(sent)

    def begin_dense(self, state: ParameterState, gradient: Tensor) -> float:
        """Return the factor that clips and weighs a gradient that travels dense; if frozen, it is zeroed."""
        own_memory(gradient)
        state.phase = Phase.IN_FLIGHT
        if self._abstains(state):
            gradient.zero_()
        if self._reducer.settings.nonfinite == "raise":
            self._reducer.nonfinite.check_local(state.name, gradient)
        state.scale = 1.0 if state.velocity is None else self._reducer.settings.loss_scale()
        factor = self._reducer.clipping.factor(state.name, gradient)
        self._reducer.observers.submitted(Submitted(state.name, gradient.numel() * gradient.element_size()))
        return factor * self._reducer.weight

    def _abstains(self, state: ParameterState) -> bool:
        return state.frozen or state.unused or self._reducer.abstains

    # -- back --

    def end_dense(self, state: ParameterState, reduced: Tensor, gradient: Tensor) -> None:
        """Overwrite ``gradient`` with what was reduced (its shape), after momentum correction."""
        state.held = state.frozen and not bool(reduced.any())
        velocity = None if state.held else state.velocity
        if velocity is not None and all_finite(reduced):
            reduced = velocity.advance(reduced, 1.0 / state.scale).view(gradient.shape)
            velocity.update()
            reduced = reduced if state.scale == 1.0 else reduced.mul(state.scale)
        if reduced is not gradient:
            gradient.copy_(reduced)
        if self._reducer.settings.nonfinite == "raise":
            self._reducer.nonfinite.check_reduced(state.name, gradient)
        self._reducer.end(state, gradient)

    def end_sum(
        self,
        state: ParameterState,
        summands: Sequence[SparseGradient] | None,
        rejected: SparseGradient,
        gradient: Tensor,
    ) -> None:
        """Overwrite ``gradient`` with the sum or mean of all ranks, from what adds up to their sum; with NaN
        if that is None, as a rank refused.

        rejected: what the way took of this rank's part, or of the sum; it returns to the residual.
        """
        if summands is None:
            gradient.fill_(torch.nan)
            self._reducer.end(state, gradient)
            return
        if rejected.count and state.layer is not None:
            state.layer.reclaim(rejected.to(gradient.device))
        self._add_up(state, summands, self._reducer.messages.size, gradient)

    def end_whole(
        self,
        state: ParameterState,
        layer: CompressedLayer,
        total: Tensor | None,
        rejected: Tensor | None,
        gradient: Tensor,
    ) -> None:
        """Overwrite ``gradient`` as `end_sum` does, from the sum ``total`` (fp32 [N], may be mutated).

        rejected: fp32 [N], the new residual; None for nothing.
        """
        if total is None:
            gradient.fill_(torch.nan)
        else:
            layer.whole.end(None if rejected is None else rejected.to(gradient.device))
            state.held = state.frozen and not bool(total.any())
            divisor = self._reducer.messages.size if self._reducer.averages else 1
            mean, factor = total.view(gradient.shape), state.scale / divisor
            if mean.device == gradient.device:
                torch.mul(mean, factor, out=gradient)
            else:
                gradient.copy_(mean.mul_(factor))
            if not all_finite(gradient):
                self._reducer.nonfinite.add_overflow(state.name, gradient)
            self._reducer.clipping_watch.exchanged(state, gradient)
        self._reducer.end(state, gradient)

    def end_factored(
        self,
        state: ParameterState,
        layer: FactoredLayer,
        total: TensorSum | None,
        given: Tensor,
        gradient: Tensor,
    ) -> bool:
        """Overwrite ``gradient`` as `end_whole` does, from a sum yet to be written out; return whether
        it is finite. If not, the residual stays as it is.

        given: fp32 [N] on the CPU, what this rank has given of it; overwritten. It is looked at here only, if
            a rank refused: what was sent of it was not finite if it is not.
        """
        if total is None:
            self._note_if_not_finite(state, given)
            gradient.fill_(torch.nan)
            self._reducer.end(state, gradient)
            return False
        in_place = (
            gradient.device == given.device and gradient.dtype == torch.float32 and gradient.is_contiguous()
        )
        mean = gradient.view(-1) if in_place else torch.empty_like(given)
        factor = state.scale / (self._reducer.messages.size if self._reducer.averages else 1)
        finite = total.write(factor, mean, given)
        mean[:0].zero_()  # autograd is to know that it was changed, which NumPy does not tell
        if finite:
            layer.whole.end(given.to(gradient.device))
        state.held = state.frozen and not bool(mean.any())
        if not in_place:
            gradient.copy_(mean.view(gradient.shape))
        if not finite or ((factor > 1 or not in_place) and not all_finite(gradient)):
            self._reducer.nonfinite.add_overflow(state.name, gradient)
        self._reducer.clipping_watch.exchanged(state, gradient)
        self._reducer.end(state, gradient)
        return finite

    def end_payloads(self, state: ParameterState, payloads: list[Payload], gradient: Tensor) -> None:
        """Overwrite ``gradient`` with the sum or mean of all ranks' payloads; with NaN if one refused."""
        refused = [rank for rank, payload in enumerate(payloads) if payload.refused]
        if refused:
            self._reducer.nonfinite.add_refusals(state.name, refused)
            gradient.fill_(torch.nan)  # a loss scaler must see it, and nothing may ever be trained with it
            self._reducer.end(state, gradient)
        else:
            self._add_up(state, payloads, len(payloads), gradient)

    def _add_up(
        self,
        state: ParameterState,
        summands: Sequence[Payload | SparseGradient],
        ranks: int,
        gradient: Tensor,
    ) -> None:
        state.held = state.frozen and not any(each.count for each in summands)
        if not sum_into(gradient, summands, state.scale / (ranks if self._reducer.averages else 1)):
            self._reducer.nonfinite.add_overflow(state.name, gradient)
        self._reducer.clipping_watch.exchanged(state, gradient)
        self._reducer.end(state, gradient)


def _with_momentum(state: ParameterState, gradient: Tensor, factor: float) -> tuple[Tensor, float]:
    """Return the velocity that momentum makes of a gradient, if it is applied here, and what to multiply
    with.
    """
    if state.velocity is None:
        return gradient, factor
    velocity = state.velocity.advance(gradient, factor)
    state.velocity.update()
    return velocity, 1.0
