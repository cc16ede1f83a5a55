"""Bytes and times of encoding what was selected from recorded gradients, tensor by tensor."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

from gradsieve import Residual, Selection, TopKSelector, codec
from gradsieve.codec import ValueDtype

from .recording import Recording

Row = dict[str, Any]
_STEPS = 16  # of accumulation before selections are taken
_SMALLEST = 10_000  # elements: smaller tensors travel dense
_ROUNDS = 7


@dataclass
class _Times:
    encode: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)


def measure(task: str, densities: tuple[float, ...]) -> Iterator[Row]:
    """Yield a row per density and value type: bytes per kept entry over all tensors of the model, headers
    included, and the seconds for all of them, minimum and median of interleaved rounds.
    """
    recording = Recording(_STEPS, task)
    for density in densities:
        selections = _selections(recording, density)
        kept = sum(selection.indices.numel() for selection, _ in selections)
        times: dict[ValueDtype, _Times] = {dtype: _Times() for dtype in get_args(ValueDtype)}
        sizes: dict[ValueDtype, int] = {}
        for _ in range(_ROUNDS):
            for dtype in times:
                sizes[dtype] = _round(selections, dtype, times[dtype])
        for dtype, taken in times.items():
            yield {
                "codec": dtype,
                "task": task,
                "density": density,
                "tensors": len(selections),
                "kept": kept,
                "bytes_per_kept": sizes[dtype] / kept,
                "encode_seconds": min(taken.encode),
                "decode_seconds": min(taken.decode),
                "median_encode_seconds": statistics.median(taken.encode),
                "median_decode_seconds": statistics.median(taken.decode),
            }


def _round(selections: list[tuple[Selection, int]], dtype: ValueDtype, times: _Times) -> int:
    """Encode and decode everything once; return the bytes."""
    begin = time.perf_counter()
    payloads = [codec.encode(selection, elements, dtype) for selection, elements in selections]
    encoded = time.perf_counter()
    for payload, (_, elements) in zip(payloads, selections, strict=True):
        codec.decode(payload, elements)
    times.encode.append(encoded - begin)
    times.decode.append(time.perf_counter() - encoded)
    return sum(payload.numel() for payload in payloads)


def _selections(recording: Recording, density: float) -> list[tuple[Selection, int]]:
    """Return every tensor's exact selection after the recorded steps, and its elements."""
    selector = TopKSelector()
    found = []
    for gradients in recording.tensors.values():
        elements = gradients[0].numel()
        if elements < _SMALLEST:
            continue
        residual = Residual(elements)
        for gradient in gradients:
            selection = selector.select(residual.begin(gradient), density, None)
            residual.update(selection)
            residual.commit()
        found.append((selection, elements))
    return found
