"""How fast this machine selects, encodes, decodes and adds: timed in about a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gradsieve import Compression, CompressionConfig, Decision, LayerCompressor, MomentumCorrection, Refusal
from gradsieve.codec import ValueDtype, decode, encode_all, encode_rounded
from gradsieve.kernels.magnitude import all_finite
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.exchange import LowRankExchange, RingExchange
from gradsieve_hvd.transport.base import Transport
from gradsieve_hvd.transport.threads import run_ranks

from .costs import WorkRates

_SIDE = 1024
_ELEMENTS = _SIDE * _SIDE  # of a bucket, so that what does not fit into caches is not taken to
_FEW_ELEMENTS = 10_000  # the least that is compressed by default
_ROUNDS = 5
_CACHES = 16 * _SIDE * _SIDE  # elements: more than caches hold
_MOVE = 0.7e-9
"""Seconds per byte **(r)**: four ranks on two cores add up 24 MB each in 71 to 112 ms over no shaped link."""
_LOOK = 0.08
"""Of a core, while messages are waited for **(r)**: exchanges of four ranks over 10 Mbit/s, which took 380 to
890 ms more on the wire than over 100, took 4 to 12 % of that more of a core; an all-gather 8 %."""


def measure_rates(
    config: CompressionConfig | None = None, density: float = 0.01, value_dtype: ValueDtype = "float32"
) -> WorkRates:
    """Return the rates of this machine: the least of five runs each, on 1 048 576 normal numbers.

    Caches hold other things before each run, as after a backward pass.

    config: how gradients are selected; None for Laplace's threshold, with momentum applied before it.
    """
    gradient = torch.randn(_ELEMENTS, generator=torch.Generator().manual_seed(0))
    used = config or Compression.laplace(momentum=MomentumCorrection(masking=False))
    layer, small = LayerCompressor(used, _ELEMENTS), LayerCompressor(used, _FEW_ELEMENTS)

    def select(layer: LayerCompressor, gradient: Tensor) -> None:
        layer.select(gradient, Decision(density))
        layer.commit()

    selecting = _least(partial(select, layer, gradient)) / _ELEMENTS
    one_tensor = _least(partial(select, small, gradient[:_FEW_ELEMENTS]))
    sent = layer.select(gradient, Decision(density))
    assert not isinstance(sent, Refusal), "normal numbers are finite"
    payload, _ = encode_rounded(sent, value_dtype)
    total, entries = gradient.clone(), max(sent.count, 1)
    return WorkRates(
        select=selecting,
        encode=_least(partial(encode_rounded, sent, value_dtype)) / entries,
        decode=_least(lambda: decode(payload, _ELEMENTS).add_into(total)) / entries,
        add=_least(partial(total.add_, gradient)) / _ELEMENTS,
        narrow=_least(lambda: decode(encode_all(gradient, "float16"), _ELEMENTS)) / _ELEMENTS,
        factor=_factoring(gradient) / _ELEMENTS,
        tensor=max(one_tensor - _FEW_ELEMENTS * selecting, 0.0),
        clear=_least(total.zero_) / _ELEMENTS,
        message=_handling(),
        carry=_carrying(gradient) / _ELEMENTS,
        move=_MOVE,
        look=_LOOK,
    )


def _carrying(gradient: Tensor) -> float:
    """Return what a gradient takes that travels whole, besides its sum: into a bucket, looked through before
    and after, and back as a mean.
    """
    mean = torch.empty_like(gradient)

    def work() -> None:
        flat = torch.cat([gradient])
        for _ in ("before", "after"):
            all_finite(flat)
        mean.copy_(flat.div_(2.0))

    return _least(work)


def _factoring(gradient: Tensor) -> float:
    exchange = LowRankExchange([(_SIDE, _SIDE)], rank=1)
    given, mean = gradient.clone(), torch.empty_like(gradient)

    def work(transport: Transport) -> float:
        def factored() -> None:
            for each in exchange.exchange_tensors([given], transport) or ():
                each.write(1.0, mean, given)

        return _least(factored)

    return run_ranks(1, work)[0]


def _handling() -> float:
    """Return what a message takes that holds next to nothing: around a ring of two, which are threads of one
    core, each sends two and receives two.
    """
    few = SparseGradient(2 * _SIDE, torch.arange(2), torch.ones(2))

    def work(transport: Transport) -> float:
        return _least(lambda: RingExchange().exchange(few, transport))

    return max(run_ranks(2, work)) / 8


def _least(work: Callable[[], object]) -> float:
    seconds, ballast = [], torch.zeros(_CACHES)
    for _ in range(_ROUNDS + 1):  # the first one compiles, or fetches from memory
        ballast.add_(1.0)
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])
