"""One tensor's way into Horovod and back: compressed by allgather, or dense by Horovod's own all-reduce."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradsieve import LayerCompressor, codec
from gradsieve.errors import GradsieveError
from gradsieve.kernels.magnitude import all_finite

from . import seam
from .agreed_clipping import AgreedClipping
from .clipping_watch import ClippingWatch
from .entries import Entry, Ticket
from .nonfinite import NonFiniteLog
from .step_counter import StepCounter
from .tensors import own_memory, reducible, sparse_values, sum_into, token
from .transport.horovod_allgather import Allgather

if TYPE_CHECKING:
    from .compressor import HorovodCompressor
    from .transaction import Transaction


@dataclass(eq=False)
class TensorExchange:
    """Starts and finishes the exchanges of one optimizer's tensors; the step they belong to is the
    transaction's business.

    A frozen parameter (``requires_grad=False``) takes part with nothing, so that ranks that freeze other
    layers than their peers neither hang nor part. If no rank sent anything for it, it is *held*: it must not
    be updated.
    """

    optimizer: Any
    compressor: HorovodCompressor
    counter: StepCounter
    nonfinite: NonFiniteLog = field(default_factory=NonFiniteLog)

    def __post_init__(self) -> None:
        self.clipping = AgreedClipping(self.optimizer, self.compressor)
        self.clipping_watch = ClippingWatch(self.optimizer)

    def start(self, transaction: Transaction, entry: Entry, gradient: Tensor) -> tuple[Tensor, Ticket]:
        """Return the tensor that Horovod shall all-reduce, and the ticket.

        A gradient whose elements share memory gets memory of its own first.

        - Compressed: clip, add the residual, select, encode, start a named allgather of the payload.
        - Dense: the gradient itself, clipped (bf16 as fp32). A frozen parameter's is set to zero.
        """
        own_memory(gradient)
        if entry.layer is not None:
            return self._start_sparse(transaction, entry, entry.layer, gradient)
        if entry.frozen:
            gradient.zero_()
        if self.compressor.nonfinite == "raise":
            self.nonfinite.check_local(entry.name, gradient)
        self.counter.add_dense(gradient)
        scale = 1.0 if entry.velocity is None else self.compressor.loss_scale()
        factor, sent = self.clipping.factor(entry.name, gradient), reducible(gradient)
        return sent if factor == 1.0 else sent * factor, Ticket(transaction, entry, gradient, scale)

    def _start_sparse(
        self, transaction: Transaction, entry: Entry, layer: LayerCompressor, gradient: Tensor
    ) -> tuple[Tensor, Ticket]:
        scale = self.compressor.loss_scale()
        if entry.frozen:
            self.clipping.abstain(gradient.numel())
            payload = layer.abstain()
            self.counter.add_payload(payload, 0, 0, 0)
        else:
            factor = self.clipping.factor(entry.name, gradient)
            payload = layer.compress(gradient, step=transaction.step, unscale=factor / scale)
            size = gradient.numel() * gradient.element_size()
            self.counter.add_payload(payload, layer.kept, gradient.numel(), size)
        gather = Allgather(payload, entry.name, self.optimizer.process_set)
        return token(gradient), Ticket(transaction, entry, gradient, scale, gather)

    def rollback(self) -> None:
        """Forget the step under way: it is not going to be taken."""
        self.nonfinite.clear()
        self.clipping.discard()
        self.clipping_watch.clear()

    def finish_dense(self, reduced: Tensor, ticket: Ticket) -> None:
        """Overwrite ``ticket.gradient`` with what Horovod has reduced, after momentum correction."""
        entry, gradient = ticket.entry, ticket.gradient
        entry.held = entry.frozen and not bool(reduced.any())
        velocity = None if entry.held else entry.velocity
        if velocity is not None and all_finite(reduced):
            reduced = velocity.advance(reduced, 1.0 / ticket.scale).mul(ticket.scale).view(gradient.shape)
            velocity.keep()
        if reduced is not gradient:
            gradient.copy_(reduced)
        if self.compressor.nonfinite == "raise":
            self.nonfinite.check_reduced(entry.name, gradient)

    def finish_sparse(self, gathered: Tensor, ticket: Ticket) -> None:
        """Overwrite ``ticket.gradient`` with the sum or mean of all ranks' payloads; with NaN if one refused.

        Raises:
            PayloadError: a rank sent what cannot be decoded.
        """
        entry, gradient = ticket.entry, ticket.gradient
        ranks = self.optimizer.process_set.size()
        self.counter.add_received(gathered)
        try:
            payloads = codec.split(gathered, ranks, gradient.numel())
        except GradsieveError as error:
            error.add_note(f"while decoding the gradient of '{entry.name}'")
            raise
        refused = [rank for rank, payload in enumerate(payloads) if payload.refused]
        if refused:
            self.nonfinite.add_refusals(entry.name, refused)
            gradient.fill_(torch.nan)  # a loss scaler must see it, and nothing may ever be trained with it
            return
        entry.held = entry.frozen and not any(payload.count for payload in payloads)
        divisor = ranks if seam.reduction_name(self.optimizer.op) == "Average" else 1
        if not sum_into(gradient, payloads, ticket.scale / divisor):
            self.nonfinite.add_overflow(entry.name, gradient)
        self.clipping_watch.exchanged(ticket)

    def check_sparse_embedding(self, parameter: Any, reduced: Tensor) -> None:
        """Look at a sparse gradient that Horovod has reduced by itself, and at this rank's own, which is
        still in ``parameter.grad``.
        """
        if self.compressor.nonfinite == "raise":
            name = seam.name_of(self.optimizer, parameter)
            self.nonfinite.check_local(name, sparse_values(parameter.grad))
            self.nonfinite.check_reduced(name, sparse_values(reduced))
