"""A pass over N elements in parts, one per thread."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from itertools import pairwise
from typing import TypeVar

import torch

from gradsieve.kernels.simd import LANES

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")
_Second = TypeVar("_Second")
_PARTS_PER_THREAD = 4
_PER_PART = 1 << 18  # elements, a tenth of a millisecond: with less, another thread costs more than it saves
_ENTRIES_PER_PART = 1 << 15  # selected elements, likewise


def spans(elements: int, multiple_of: int = LANES) -> list[tuple[int, int]]:
    """Return where parts start and stop: some for each of torch's threads, fewer if they would be too small.

    They start at multiples of ``multiple_of``; a part may be empty.
    """
    return list(_spans(elements, multiple_of, _PER_PART, torch.get_num_threads()))


def entry_spans(entries: int) -> list[slice]:
    """Return parts of a list of selected elements."""
    return [slice(*part) for part in _spans(entries, 1, _ENTRIES_PER_PART, torch.get_num_threads())]


@lru_cache(maxsize=4096)
def _spans(count: int, multiple_of: int, least: int, threads: int) -> tuple[tuple[int, int], ...]:
    parts = 1 if threads == 1 else max(1, min(threads * _PARTS_PER_THREAD, count // least))
    cuts = [count * part // parts // multiple_of * multiple_of for part in range(parts)]
    return tuple(pairwise([*cuts, count]))


def parallel_map(work: Callable[[_Part], _Result], parts: Sequence[_Part]) -> list[_Result]:
    """Return ``work`` of every part, in order; it must release the interpreter's lock to gain anything.

    Every thread takes the next part when it has done one, so that none waits long for a slower one.
    """
    if len(parts) == 1:
        return [work(parts[0])]
    waiting = deque(enumerate(parts))
    done: dict[int, _Result] = {}

    def take() -> None:
        while waiting:
            try:
                number, part = waiting.popleft()
            except IndexError:  # another thread was quicker
                return
            done[number] = work(part)

    others = [_pool(os.getpid()).submit(take) for _ in range(min(torch.get_num_threads(), len(parts)) - 1)]
    try:
        take()
    finally:
        waiting.clear()
        for other in others:
            other.result()
    return [done[number] for number in range(len(parts))]


def both(
    first: Callable[[], _Result], second: Callable[[], _Second], entries: int
) -> tuple[_Result, _Second]:
    """Return the results of both, done beside each other if ``entries`` selected elements are worth it.

    What ``first`` raises has precedence.
    """
    if torch.get_num_threads() == 1 or entries < _ENTRIES_PER_PART:
        return first(), second()
    later = _pool(os.getpid()).submit(second)
    return first(), later.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - threads do not survive a fork
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="gradsieve")
