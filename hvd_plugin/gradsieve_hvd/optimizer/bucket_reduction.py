"""A gradient's way into its bucket, and the sums' way back out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.engine.in_flight import InFlightCheck
from gradsieve_hvd.engine.observer import Submitted
from gradsieve_hvd.engine.reducer import Reducer
from gradsieve_hvd.engine.tensor_reduction import TensorReduction
from gradsieve_hvd.exchange import Exchanged, Reduced

from .buckets import Bucket, DenseBucket, FactoredBucket, FactoredSums, SparseBucket
from .exchange_thread import Pending
from .momentum import TakenOverMomentum
from .plan import BucketPlan
from .whole_bucket import WholeBucket


class BucketReduction:
    """The gradients of one round: what is put into buckets, and what comes of it.

    Args:
        reducer: of the optimizer.
        named: its parameters; they may become more.
        plan: which tensor travels in which bucket.
        momentum: the optimizer's, if it is applied here.
        sparse_as_dense, predivide: see `Synchronizer`.
    """

    def __init__(
        self,
        reducer: Reducer,
        named: Mapping[str, Parameter],
        plan: BucketPlan,
        *,
        momentum: TakenOverMomentum | None,
        sparse_as_dense: bool,
        predivide: float,
    ) -> None:
        self._reducer, self._named, self._plan, self._momentum = reducer, named, plan, momentum
        self._tensors = TensorReduction(reducer)
        self._sparse_as_dense, self._predivide = sparse_as_dense, predivide
        self._put: dict[str, Tensor] = {}
        self._in_flight = InFlightCheck()

    def begin_round(self) -> None:
        """Forget which gradients were changed in the last round."""
        self._in_flight = InFlightCheck()

    # -- out --

    def missing(self) -> list[str]:
        """Return the names of the tensors that have not been put into their buckets, sorted."""
        return sorted(self._plan.names - self._put.keys())

    def put(self, name: str, gradient: Tensor | None = None) -> None:
        """Put what is sent of a gradient into its bucket.

        gradient: a dense one, overwritten with the mean or sum; None for what `gradient_of` returns.

        Raises:
            ConfigurationError: see `gradient_of`.
        """
        parameter, bucket = self._named[name], self._plan.bucket_of(name)
        gradient = self.gradient_of(name) if gradient is None else gradient
        state = self._reducer.state_of(name, parameter)
        if self._momentum is not None and state.velocity is not None:
            self._momentum.adopt(parameter, state.velocity, compressed=state.compressor is not None)
        self._put[name] = gradient
        if isinstance(bucket, DenseBucket):
            factor = self._tensors.begin_dense(state, gradient) / self._predivide
            bucket.put(name, gradient if factor == 1.0 else gradient * factor)
        elif isinstance(bucket, FactoredBucket):
            assert state.factored is not None, "the plan and the states ask the same path"
            given = self._tensors.begin_whole(state, state.factored, gradient)
            bucket.put(name, given, state.factored.factor, owned=state.factored.whole.owned)
        elif isinstance(bucket, WholeBucket):
            assert state.layer is not None, "the plan and the states ask the same path"
            given = self._tensors.begin_whole(state, state.layer, gradient)
            given = given if self._predivide == 1.0 else given / self._predivide
            bucket.put(name, given, self._reducer.messages.size)
        else:
            assert state.layer is not None, "the plan and the states ask the same path"
            bucket.put(state, self._tensors.select(state, state.layer, gradient))
        self._in_flight.begin(state, gradient)  # what is frozen has been set to zero

    def unfrozen(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the gradients of those of the parameters that are not frozen, with their names."""
        for name in names:
            if self._named[name].requires_grad:
                yield name, self.gradient_of(name)

    def gradient_of(self, name: str) -> Tensor:
        """Return a parameter's gradient, a dense one; zeros if it has none, as another rank may have one.

        Raises:
            ConfigurationError: it is sparse, and sparse ones are not made dense.
        """
        parameter = self._named[name]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.layout != torch.strided:
            if not self._sparse_as_dense:
                raise ConfigurationError(
                    f"the gradient of '{name}' is sparse (an embedding with sparse=True). Pass "
                    "sparse_as_dense=True, or build the embedding with sparse=False."
                )
            parameter.grad = parameter.grad.to_dense()
        return parameter.grad

    # -- back --

    def finish(self, bucket: Bucket, pending: Pending[Any]) -> None:
        """Wait for a bucket and overwrite the gradients of its tensors with the sums.

        Raises:
            ExchangeError, PayloadError: see `Pending.wait`.
        """
        result, observers = pending.wait(), self._reducer.observers
        if isinstance(bucket, DenseBucket):
            observers.arrived(bucket.name, 0)
        else:
            observers.submitted(Submitted(bucket.name, 0, pending.transport.sent_bytes))
            observers.arrived(bucket.name, pending.transport.received_bytes)
        if result.refused:
            self._reducer.nonfinite.add_refused(list(bucket.sizes))
        if isinstance(bucket, DenseBucket):
            self._finish_dense(bucket, result)
        elif isinstance(bucket, FactoredBucket):
            self._finish_factored(bucket, result)
        elif isinstance(bucket, WholeBucket):
            self._finish_whole(bucket, result)
        else:
            self._finish_sparse(bucket, result)

    def _finish_dense(self, bucket: DenseBucket, result: Reduced) -> None:
        ranks = self._reducer.messages.size if self._reducer.averages else 1
        for name, part in bucket.split(result, ranks / self._predivide):
            state, gradient = self._reducer.states[name], self._put[name]
            self._in_flight.end(state)
            mean = part.to(gradient.device, gradient.dtype).view(gradient.shape)
            self._tensors.end_dense(state, mean, gradient)

    def _finish_factored(self, bucket: FactoredBucket, result: FactoredSums) -> None:
        for name, given, summed, factor in bucket.split(result):
            state = self._reducer.states[name]
            assert state.factored is not None, "it was put into the bucket"
            self._in_flight.end(state)
            if self._tensors.end_factored(state, state.factored, summed, given, self._put[name]):
                state.factored.keep(factor)

    def _finish_whole(self, bucket: WholeBucket, result: Reduced) -> None:
        for name, total, rejected in bucket.split(result):
            state = self._reducer.states[name]
            assert state.layer is not None, "it was put into the bucket"
            self._in_flight.end(state)
            for part in (total, rejected):
                if part is not None and self._predivide != 1.0:
                    part.mul_(self._predivide)
            summed = None if result.refused else total
            self._tensors.end_whole(state, state.layer, summed, rejected, self._put[name])

    def _finish_sparse(self, bucket: SparseBucket, result: Exchanged) -> None:
        for name, summands, rejected in bucket.split(result):
            state = self._reducer.states[name]
            self._in_flight.end(state)
            self._tensors.end_sum(state, None if result.refused else summands, rejected, self._put[name])

    def require_unchanged(self) -> None:
        """Check that nobody wrote to gradients while they were exchanged.

        Raises:
            ConfigurationError: somebody did.
        """
        self._in_flight.raise_if_any()

    def end_round(self) -> None:
        """Forget the gradients."""
        self._put.clear()
