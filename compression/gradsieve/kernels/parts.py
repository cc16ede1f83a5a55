"""A pass over N elements in parts, one per thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TypeVar

import torch

from gradsieve.kernels.lanes import LANES

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")
_PER_THREAD = (
    1 << 18
)  # elements, a tenth of a millisecond: with less, another thread costs more than it saves


def spans(elements: int, multiple_of: int = LANES) -> list[tuple[int, int]]:
    """Return where parts start and stop: as many as torch has threads, fewer if they would be too small.

    They start at multiples of ``multiple_of``; a part may be empty.
    """
    parts = max(1, min(torch.get_num_threads(), elements // _PER_THREAD))
    cuts = [elements * part // parts // multiple_of * multiple_of for part in range(parts)]
    return list(pairwise([*cuts, elements]))


def beside_each_other(work: Callable[[_Part], _Result], parts: Sequence[_Part]) -> list[_Result]:
    """Return ``work`` of every part, in order; it must release the interpreter's lock to gain anything."""
    if len(parts) == 1:
        return [work(parts[0])]
    others = [_pool(os.getpid()).submit(work, part) for part in parts[1:]]
    return [work(parts[0]), *(other.result() for other in others)]


@cache
def _pool(process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - threads do not survive a fork
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="gradsieve")
