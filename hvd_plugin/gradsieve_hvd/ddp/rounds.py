"""A backward pass of DistributedDataParallel: its buckets on their way through the engine.

::

    hook: bucket full ─► BucketReduction.put ─► exchange thread                  [backward goes on]
    last hook: wait ─► BucketReduction.finish ─► commit or roll back ─► DDP takes the means
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket  # mypy does not find it in torch.distributed
from torch.nn import Parameter

from gradsieve.errors import ConfigurationError, NonFiniteGradient
from gradsieve.kernels.magnitude import all_finite
from gradsieve_hvd.engine.held_clipping import HeldClipping
from gradsieve_hvd.engine.reducer import Reducer
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.engine.settings_check import settings_of
from gradsieve_hvd.optimizer.bucket_reduction import BucketReduction
from gradsieve_hvd.optimizer.buckets import Bucket, DenseBucket
from gradsieve_hvd.optimizer.exchange_thread import ExchangeThread, Pending
from gradsieve_hvd.optimizer.messages import ThreadMessages
from gradsieve_hvd.optimizer.paths import Path
from gradsieve_hvd.optimizer.plan import BucketPlan
from gradsieve_hvd.transport.base import Transport


class _Arrived(NamedTuple):
    """A bucket of DDP. gradients: views of the buffer, by name. future: what DDP waits for."""

    buffer: Tensor
    gradients: dict[str, Tensor]
    last: bool
    future: torch.futures.Future[Tensor]


class _Launched(NamedTuple):
    reduction: BucketReduction
    bucket: Bucket
    pending: Pending[Any]


class Rounds:
    """Exchanges what DDP hands over, one backward pass after the other.

    Args:
        named: the parameters that DDP reduces, by name.
        settings: the user's.
        transport: to the other ranks, for this object alone.
        path: how gradients travel.
        compared: what else must be equal on all ranks, JSON-able.
        may_be_unused: whether DDP may leave the gradient of a parameter alone that no rank has used.

    reducer: the step's state.
    """

    def __init__(
        self,
        named: Mapping[str, Parameter],
        settings: Settings,
        transport: Transport,
        path: Path,
        compared: dict[str, Any],
        *,
        may_be_unused: bool = False,
    ) -> None:
        self._named, self._path, self._compared = named, path, compared
        self._may_be_unused = may_be_unused
        self._name_of: dict[Tensor, str] = {parameter: name for name, parameter in named.items()}
        self._thread = ExchangeThread(transport, settings.timeout_seconds)
        self._messages = ThreadMessages(self._thread)
        self.reducer = Reducer(
            settings,
            lambda: sorted(named.items()),
            self._messages,
            averages=True,
            new_state=path.new_state,
            holds_when_clipping=True,
        )
        self._plans: dict[tuple[str, ...], tuple[BucketPlan, BucketReduction]] = {}
        self._arrived: list[_Arrived] = []
        self._launched: list[_Launched] = []
        self._began = 0.0

    def add(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Take over a bucket; see `gradsieve_hvd.ddp.ddp_hook`."""
        if bucket.index() == 0:
            self._begin()
        arrived = self._opened(bucket)
        self._arrived.append(arrived)
        try:
            if not isinstance(self.reducer.clipping, HeldClipping):
                self._send(arrived)
            if arrived.last:
                self._end()
        except BaseException:
            self.reducer.rollback()
            self._forget()
            raise
        return arrived.future

    def _begin(self) -> None:
        """Begin a backward pass; one that was broken off is rolled back. Before the first, compare
        settings.
        """
        if self._arrived or self.reducer.unapplied:
            self.reducer.rollback()
            self._forget()
        if not self.reducer.compared:
            mine = settings_of(self.reducer.settings, sorted(self._named.items()), **self._compared)
            self.reducer.compare(mine, compresses=self._path.compresses)
        self.reducer.begin_round()
        self._began = time.monotonic()

    def _opened(self, bucket: GradBucket) -> _Arrived:
        buffer, parameters = bucket.buffer(), bucket.parameters()
        if buffer.layout != torch.strided:
            raise ConfigurationError(
                "a bucket of DistributedDataParallel is sparse (an embedding with sparse=True): build the "
                "embedding with sparse=False"
            )
        unknown = [tuple(parameter.shape) for parameter in parameters if parameter not in self._name_of]
        if unknown:
            raise ConfigurationError(
                f"DdpState does not know a parameter of shape {unknown[0]}: it was made for another model, "
                "or before parameters were added or replaced. Make it from the model that registers the hook."
            )
        names = [self._name_of[parameter] for parameter in parameters]
        devices: list[int | str | torch.device] | None = (
            [buffer.device] if buffer.device.type != "cpu" else None
        )
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        gradients = dict(zip(names, bucket.gradients(), strict=True))
        return _Arrived(buffer, gradients, bucket.is_last(), future)

    def _send(self, arrived: _Arrived) -> None:
        """Put gradients into our buckets, which leave at once."""
        plan, reduction = self._planned(tuple(arrived.gradients))
        reduction.begin_round()
        for name, gradient in arrived.gradients.items():
            if self._may_be_unused:
                # Where no rank has used it DDP takes no mean: what was sent of its residual would be lost.
                state = self.reducer.state_of(name, self._named[name])
                state.unused = not bool(gradient.any())
            reduction.put(name, gradient)
        for bucket in plan.buckets:
            if isinstance(bucket, DenseBucket):
                bucket.joined = not _in_backward()
                if not bucket.sizes and not arrived.last:
                    continue  # it only counts ranks that have joined, for which the last one does
            names = ", ".join(f"'{name}'" for name in list(bucket.sizes)[:3])
            begin = bucket.begun(time.monotonic() - self._began)
            pending = self._thread.submit(begin, f"{bucket.name} ({names}, ...)")
            self._launched.append(_Launched(reduction, bucket, pending))

    def _planned(self, names: tuple[str, ...]) -> tuple[BucketPlan, BucketReduction]:
        """Return our buckets for one of DDP's: they are of one kind each, sparse, factored or dense."""
        if names not in self._plans:
            plan = BucketPlan(self.reducer.settings.config, self._path, {})
            plan.extend({name: self._named[name] for name in names})
            for bucket in plan.buckets:
                bucket.name = f"DDP bucket {len(self._plans)}, {bucket.name}"
            reduction = BucketReduction(
                self.reducer, self._named, plan, momentum=None, sparse_as_dense=False, predivide=1.0
            )
            self._plans[names] = plan, reduction
        return self._plans[names]

    def _end(self) -> None:
        """All of DDP's buckets are there: wait for all of ours, and end the step.

        Raises:
            NonFiniteGradient: if not within backward; else it is raised when that has ended.
        """
        if isinstance(self.reducer.clipping, HeldClipping):
            self.reducer.clipping.agree(sorted(self._unfrozen().items()))
            for arrived in self._arrived:
                self._send(arrived)
        self._messages.flush()
        observers = self.reducer.observers
        observers.waits_for([each.bucket.name for each in self._launched if not each.pending.finished])
        for each in self._launched:
            each.reduction.finish(each.bucket, each.pending)
        observers.all_arrived()
        counting = next(each.bucket for each in reversed(self._launched) if _counts(each.bucket))
        self.reducer.uneven = bool(counting.absent)
        error = self._commit_or_skip()
        for arrived in self._arrived:
            arrived.future.set_result(arrived.buffer)
        self._forget()
        if error is not None:
            _raise_after_backward(error)

    def _unfrozen(self) -> dict[str, Tensor]:
        return {
            name: gradient
            for arrived in self._arrived
            for name, gradient in arrived.gradients.items()
            if self._named[name].requires_grad
        }

    def _commit_or_skip(self) -> NonFiniteGradient | None:
        """Commit if the means may be applied; else roll back, and return what is to be raised, if anything.

        With "propagate" a loss scaler sees what is not finite, and skips the step.
        """
        raises = self.reducer.settings.nonfinite == "raise"
        try:
            if raises:
                self.reducer.nonfinite.raise_if_any(self._messages)
        except NonFiniteGradient as error:
            self.reducer.skip()
            return error
        if raises or all(all_finite(arrived.buffer) for arrived in self._arrived):
            self.reducer.clipping_watch.clear()
            self.reducer.commit()
        else:
            self.reducer.skip()
        return None

    def _forget(self) -> None:
        self._arrived.clear()
        self._launched.clear()
        for plan, reduction in self._plans.values():
            reduction.end_round()
            plan.discard()


def _counts(bucket: Bucket) -> bool:
    return isinstance(bucket, DenseBucket) and bucket.counts


def _in_backward() -> bool:
    """Whether a backward pass runs; DDP's join calls hooks outside of one, for a rank that has joined."""
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001 - torch has no public name for it


def _raise_after_backward(error: Exception) -> None:
    """Raise when DDP has ended its own part of the backward pass, so that its next one can begin."""
    if not _in_backward():
        raise error
    engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - as FSDP does

    def fail() -> None:
        raise error

    engine.queue_callback(lambda: engine.queue_callback(fail))  # DDP queues its own between the two
