"""A shard: it keeps some of the model's tensors and executes the decision-maker's orders on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from gradsieve import Payload, Refusal
from gradsieve.codec import decode
from gradsieve.errors import NonFiniteGradient, PayloadError
from gradsieve.kernels.magnitude import all_finite

from .changes import Changes
from .ledger import Ledger
from .letters import Drop, MakeVersion, Order, Parts, Send, Weights
from .release import Given, combine
from .reply import packed_weights, viewed_as
from .shard_optimizer import packed_state, set_hyperparameters


class Shard:
    """Executes orders one after another; one that needs a push whose parts are still under way waits, and
    those behind it wait with it. So all shards make the same versions of the same pushes.

    Args:
        copies: the weights that it keeps, by number of the tensor.
        names: of these, for errors.
        optimizer: over them.
        ranks: P.

    version: of its weights. ledger: where gradients went.
    """

    def __init__(
        self,
        copies: Mapping[int, Parameter],
        names: Mapping[int, str],
        optimizer: torch.optim.Optimizer,
        ranks: int,
    ) -> None:
        self._copies, self._names, self._optimizer, self._ranks = copies, names, optimizer, ranks
        self._orders: deque[Order] = deque()
        self._pushes: dict[int, dict[int, Payload]] = {}
        self._changes = {number: Changes(kept.numel()) for number, kept in copies.items()}
        self.version, self.ledger = 0, Ledger()

    @property
    def idle(self) -> bool:
        """Whether all orders are done."""
        return not self._orders

    def take(self, parts: Parts) -> None:
        """Keep what a push brings, until an order says what becomes of it.

        Raises:
            PayloadError: it is damaged, or not of this shard's tensors.
        """
        push = {}
        for number, part in zip(parts.tensors, parts.parts, strict=True):
            if number not in self._copies:
                raise PayloadError(f"field 'tensors': found {number}, which another rank keeps")
            try:
                push[number] = self._payload(number, part, raw=number in parts.raw)
            except PayloadError as error:
                raise PayloadError(f"gradient of '{self._names[number]}': {error}") from error
        for payload in push.values():
            self.ledger.arrived(payload)
        self._pushes[parts.number] = push

    def _payload(self, number: int, part: Tensor, *, raw: bool) -> Payload:
        elements = self._copies[number].numel()
        if not raw:
            return decode(part, elements)
        values = viewed_as(part, torch.float32)
        if values.numel() != elements:
            raise PayloadError(f"found {values.numel()} values, expected {elements}")
        return Payload(elements, 0, Refusal.NONE, None, values)

    def order(self, orders: Sequence[Order]) -> None:
        """Take on orders."""
        self._orders.extend(orders)

    def execute(self) -> Iterator[tuple[tuple[int, ...], Weights]]:
        """Do what can be done, and yield the weights that are sent, with the ranks that get them.

        They share memory with the shard: they are packed before it goes on.
        """
        while self._orders and self._can(self._orders[0]):
            match self._orders.popleft():
                case MakeVersion() as release:
                    self._make(release)
                case Drop(number):
                    for payload in self._pushes.pop(number, {}).values():
                        self.ledger.dropped(payload)
                case Send() as send:
                    yield from self._sent(send)

    def _can(self, order: Order) -> bool:
        match order:
            case MakeVersion():
                return all(each.number in self._pushes for each in order.contributions)
            case Drop(number):
                return number in self._pushes
            case Send():
                return True

    def _make(self, release: MakeVersion) -> None:
        """Step by (1/P) · Σ weight · gradient; a tensor of which nobody brings a gradient stays as it is."""
        pushes = [(each, self._pushes.pop(each.number, {})) for each in release.contributions]
        for number, kept in self._copies.items():
            given = [Given(push[number], each.weight, each.gated) for each, push in pushes if number in push]
            kept.grad = self._gradient(given, number) if given else None
        if release.hyperparameters:
            set_hyperparameters(self._optimizer, release.hyperparameters)
        stepping = [number for number, kept in self._copies.items() if kept.grad is not None]
        # Where a push brings every entry, and few of them are zero, there is nothing to compare.
        brought = {n for n in stepping for _, push in pushes if n in push and push[n].indices is None}
        whole = {n for n in brought if self._changes[n].are_most(self._copies[n].grad)}
        before = {number: self._copies[number].detach().clone() for number in stepping if number not in whole}
        self._optimizer.step()
        for number in whole:
            self._changes[number].all_changed(release.version)
        for number, weights in before.items():
            self._changes[number].note(release.version, weights, self._copies[number].detach())
        self.version = release.version

    def _gradient(self, given: Sequence[Given], number: int) -> Tensor:
        kept = self._copies[number]
        combined = combine(given, kept.numel())
        self.ledger.combined(combined)
        gradient = combined.applied.div_(self._ranks).view(kept.shape).to(kept.dtype)
        if not all_finite(gradient):
            raise NonFiniteGradient(
                f"the gradients of '{self._names[number]}' are finite, and their sum is too large for "
                f"{kept.dtype}. Training has ended on all ranks, and no weight was changed since the last "
                "version. Keep parameters in float32, and clip gradients."
            )
        return gradient

    def _sent(self, send: Send) -> Iterator[tuple[tuple[int, ...], Weights]]:
        """Encode once for all who have the same version."""
        for base in sorted(set(send.bases)):
            ranks = tuple(rank for rank, each in zip(send.ranks, send.bases, strict=True) if each == base)
            packed = [
                packed_weights(kept, self._changes[number].since(base))
                for number, kept in self._copies.items()
            ]
            whole = [is_whole for _, is_whole in packed]
            parts = [part for part, _ in packed]
            if send.with_state:
                parts.append(packed_state(self._optimizer, self._copies))
            yield (
                ranks,
                Weights(
                    version=self.version,
                    whole=whole,
                    last=send.last,
                    with_state=send.with_state,
                    parts=tuple(parts),
                ),
            )
