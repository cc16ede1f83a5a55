"""What workers, shards and the decision-maker write to each other, and how that becomes bytes.

::

    worker ── Push ──► decision-maker        "there is a gradient of this version"; its Parts go to the shards
    worker ── Parts ─► every shard
    decision-maker ── Orders ──► every shard: Release, Drop, Send, in the same order everywhere
    decision-maker ── Answer ──► worker      go on, with which weights
    shard ── Weights ──► worker
    worker ── AskBatch ─► decision-maker ── Dealt ──► worker, about samples; see `SampleLedger`
    worker ── Leave ──► decision-maker ── Stop ──► everyone, when all workers have left
    anyone ── Failure ──► everyone
    anyone ── Count ───► anyone              how many letters it has sent, in a long silence

A letter is a frame (`gradsieve.codec.frame`: magic, version, lengths, checksum) around a header in JSON and
parts of bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradsieve.codec import Label, framed, start_bytes, unframe
from gradsieve.errors import PayloadError

from .events import Contribution
from .ranges import Pairs

Hyperparameters = list[dict[str, Any]]
"""Of each parameter group of an optimizer: learning rate, momentum and the like, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """parts: uint8 [bytes] each, on the CPU."""

    parts: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Push(Letter):
    """See `gradsieve_hvd.server.events.Pushed`. encoding_seconds: what went into selecting and encoding,
    beside ``seconds``. hyperparameters: of the sender's optimizer now, from rank 0; empty from others. dealt:
    whether its batch is the next one that the sender was dealt.
    """

    number: int
    version: int
    samples: int
    seconds: float
    encoding_seconds: float = 0.0
    hyperparameters: Hyperparameters = field(default_factory=list)
    dealt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(Letter):
    """What a push brings for one shard. tensors: their numbers in the model; parts: their payloads. raw: the
    numbers of those whose part is all of the gradient as it lies in memory (fp32).
    """

    number: int
    tensors: list[int]
    raw: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders(Letter):
    """What shards do next. each: from `order_as_json`."""

    each: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Letter):
    """A worker may go on. version: of the weights that come from the shards; None if it keeps what it has.
    share: size in nominal batches of what it is dealt from now on. samples: behind this version, of all
    ranks. staleness: releases that an applied gradient had missed, the mean of all so far. leave: whether the
    worker is to leave now, as all others are. epochs: what of them this version has used, to one that has
    asked for weights. held_seconds: from the push to the decision that the worker may go on.
    """

    version: int | None
    share: float
    samples: int
    staleness: float
    leave: bool = False
    epochs: list[tuple[int, Pairs]] = field(default_factory=list)
    held_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights(Letter):
    """A shard's weights of one version. parts: of the tensors in the order of `Partition.of_shard`, as
    `packed_weights` makes them. whole: whether each is all of its tensor. last: whether nothing comes from
    the shard any more. with_state: whether one more part, from `packed_state`, follows.
    """

    version: int
    whole: list[bool]
    last: bool
    with_state: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AskWeights(Letter):
    """A worker wants to look at the newest version, beside its training, perhaps with the optimizer's
    state.
    """

    with_state: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskBatch(Letter):
    """A worker wants one more batch; see `SampleLedger.deal`."""

    iteration: int
    turn: int
    epoch: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt(Letter):
    """The next batch of that iteration of the worker's loader. places: in the epoch's order; none at the
    epoch's end.
    """

    iteration: int
    places: Pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Letter):
    """A worker will not push any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Letter):
    """All workers have left. version: the last one, which everybody gets."""

    version: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Letter):
    """Training is over. error: name of a class in `gradsieve.errors`; says: its message."""

    error: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Count(Letter):
    """The sender has sent so many letters to the receiver, counts apart, all of them before this one."""

    letters: int


_KINDS: Mapping[str, type[Letter]] = {
    each.__name__: each
    for each in (
        Push, Parts, Orders, Answer, Weights, AskWeights, AskBatch, Dealt, Leave, Stop, Failure, Count
    )
}  # fmt: skip
_FORMAT = 2
_ALIGNED = 8  # bytes: values of any type can be looked at where they lie


def pack(letter: Letter) -> Tensor:
    """Return a letter as uint8 [bytes]; its parts are copied, the first of them to where any type may lie."""
    start = _header(letter).encode()
    sizes = [each.numel() for each in letter.parts]
    for _ in range(2 * _ALIGNED):
        label = Label(_FORMAT, (len(start), *sizes))
        beyond = (start_bytes(sum(label.sizes), label) + len(start)) % _ALIGNED
        if not beyond:
            break
        start += b" "  # which may also lengthen its own number
    pieces = (torch.frombuffer(bytearray(start), dtype=torch.uint8), *letter.parts)
    return framed(pieces, Label(_FORMAT, (len(start), *sizes)))


def copied(letter: Letter) -> Letter:
    """Return what `unpack` makes of what `pack` makes of a letter, without the bytes: for a rank itself."""
    return _letter(_header(letter), [each.clone() for each in letter.parts])


def _header(letter: Letter) -> str:
    names = [each.name for each in dataclasses.fields(letter) if each.name != "parts"]
    return json.dumps({"kind": type(letter).__name__} | {name: getattr(letter, name) for name in names})


def _letter(header: str | bytes, parts: Sequence[Tensor]) -> Letter:
    said = json.loads(header)
    return _KINDS[said.pop("kind")](**said, parts=tuple(parts))


def unpack(message: Tensor) -> Letter:
    """Return the letter that `pack` made into these bytes; its parts share memory with them.

    Raises:
        PayloadError: they are truncated, corrupted or foreign.
    """
    label, content = unframe(message)
    if label.epoch != _FORMAT or not label.sizes or sum(label.sizes) != content.numel():
        raise PayloadError(
            f"field 'sizes': found format {label.epoch} and {sum(label.sizes)} bytes, expected format "
            f"{_FORMAT} and {content.numel()} bytes: run the same gradsieve release on all ranks"
        )
    start, *parts = torch.split(content, list(label.sizes))
    try:
        return _letter(bytes(start.numpy()), parts)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PayloadError(
            f"field 'header': {error!r}: not a letter; run the same gradsieve release on all ranks"
        ) from error


@dataclass(frozen=True, slots=True)
class MakeVersion:
    """Make a version of pushes. hyperparameters: to be set before; empty if they stay as they are."""

    ORDER: ClassVar[str] = "release"
    version: int
    contributions: tuple[Contribution, ...]
    hyperparameters: Hyperparameters


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a push, which is never applied."""

    ORDER: ClassVar[str] = "drop"
    number: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send the weights, as they are then, to ranks. bases: the version that each has. last: whether all
    workers have left. with_state: whether to send the optimizer's state, too.
    """

    ORDER: ClassVar[str] = "send"
    ranks: tuple[int, ...]
    bases: tuple[int, ...]
    last: bool = False
    with_state: bool = False


Order = MakeVersion | Drop | Send


def order_as_json(order: Order) -> dict[str, Any]:
    """Return an order for `Orders`."""
    return {"order": order.ORDER} | dataclasses.asdict(order)


def order_from_json(said: Mapping[str, Any]) -> Order:
    """Return the order that `order_as_json` was given."""
    match said["order"]:
        case MakeVersion.ORDER:
            contributions = tuple(Contribution(**each) for each in said["contributions"])
            return MakeVersion(said["version"], contributions, said["hyperparameters"])
        case Drop.ORDER:
            return Drop(said["number"])
        case _:
            return Send(tuple(said["ranks"]), tuple(said["bases"]), said["last"], said["with_state"])
