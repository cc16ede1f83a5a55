"""What gradients are that come again without a backward pass: the exchanged ones, or new ones.

``p.grad = p.grad * c`` after ``synchronize()`` and gradients set by hand after a skipped step look alike to a
compressor: a tensor that it has not seen, and no backward pass. The first must not be sent again (what it
lacks is in the residuals already), the second must. They differ in one thing: what was exchanged is the same
on all ranks, and so is what the same program makes of it. So the ranks compare.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from gradsieve.kernels.magnitude import all_finite
from gradsieve_hvd.transport.messages import Messages

from .parameters import ParameterState

_PROJECTIONS = 4
_ROW = 4096
_TOLERANCE = 1e-3  # (r) far above rounding on machines of different kinds, far below any other gradient


@dataclass(frozen=True, slots=True)
class Digest:
    """What one rank says of its gradients.

    replaced: whether one of them is another tensor than the exchange left. finite: whether all are.
    norm: L2. projections: of all gradients together on a few directions, the same on every rank.
    """

    replaced: bool
    finite: bool
    norm: float
    projections: tuple[float, ...]


def digest_of(gradients: Iterable[Tensor], replaced: bool) -> Digest:
    """Return the digest of gradients in an order that is the same on all ranks; none is mutated.

    Each is cut into rows of 4 096 elements. A direction is a random number per column times one per row: two
    passes over memory, and hardly any room.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    columns = _directions(_ROW, generator)
    finite, squares, projections = True, 0.0, torch.zeros(_PROJECTIONS, dtype=torch.float64, device="cpu")
    for gradient in gradients:
        finite = finite and all_finite(gradient)
        flat = gradient.detach().reshape(-1).to("cpu", torch.float32)
        squares += float(flat.norm(dtype=torch.float64)) ** 2
        rows = torch.nn.functional.pad(flat, (0, -flat.numel() % _ROW)).view(-1, _ROW)
        weights = _directions(rows.shape[0], generator)
        projections += ((rows @ columns) * weights).double().sum(0)
    return Digest(replaced, finite, math.sqrt(squares), tuple(projections.tolist()))


def _directions(length: int, generator: torch.Generator) -> Tensor:
    return torch.randn(length, _PROJECTIONS, generator=generator, dtype=torch.float32, device="cpu")


def are_new(digests: Sequence[Digest], refused: bool) -> bool:
    """Return whether all ranks' gradients are new, rather than what was exchanged; the same on all ranks.

    1. If the exchange was ``refused`` (NaN, overflow), it left what is not finite on every rank: finite
       gradients are new.
    2. Else, if no rank has replaced a tensor, they are what was exchanged, changed in place or not.
    3. Else they are what was exchanged if they are the same on all ranks, up to rounding.
    """
    if refused:
        return all(digest.finite for digest in digests)
    if not any(digest.replaced for digest in digests):
        return False
    first = digests[0]
    return not all(_alike(first, other) for other in digests[1:])


def _alike(first: Digest, other: Digest) -> bool:
    if not (first.finite and other.finite):
        return first.finite == other.finite  # not comparable: the loss scaler's business
    allowed = _TOLERANCE * max(first.norm, other.norm)
    pairs = [(first.norm, other.norm), *zip(first.projections, other.projections, strict=True)]
    return all(abs(a - b) <= allowed for a, b in pairs)


def agree_are_new(states: Iterable[ParameterState], refused: bool, messages: Messages) -> bool:
    """Exchange digests (one small message) of the parameters' gradients, and return `are_new`; all ranks call
    it, or none.

    Raises:
        ExchangeError: a rank did not answer in time.
    """
    ordered = sorted(states, key=lambda state: state.name)
    gradients = (
        torch.zeros_like(state.parameter) if state.parameter.grad is None else state.parameter.grad
        for state in ordered
    )
    mine = digest_of(gradients, any(state.replaced for state in ordered))
    message = json.dumps(asdict(mine)).encode()
    answers = messages.tell(message, "second-synchronize").wait()
    return are_new([Digest(**json.loads(answer)) for answer in answers], refused)
