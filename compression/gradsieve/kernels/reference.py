"""The definition of every selection rule, in plain torch, for any device.

Faster kernels may replace these functions; they must return the same bits. All comparisons are made on the
integer patterns of the magnitudes (see :mod:`gradsieve.kernels.magnitude`), all ties go to the lowest index.

Cost of the usual step, in passes over the N elements: strip signs and compare, list. Everything after that
works on the listed candidates, a few percent of N at the densities that compression is used for.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradsieve.kernels.magnitude import (
    TOP,
    count_at_least,
    magnitude_of,
    magnitudes,
    mean_magnitude,
    pattern_of,
    patterns_at,
    places_at_least,
)
from gradsieve.selection import Selection

_HALF_OCTAVE = 1 << 22  # pattern distance of a factor of about 1.4
_QUARTER_OCTAVE = 1 << 21  # of about 1.2: seen in training, the next threshold is hardly ever lower
_EIGHTH_OCTAVE = 1 << 20


def top_k(accumulated: Tensor, count: int, warm: float | None) -> Selection:
    """Select exactly the ``count`` largest magnitudes of fp32 [N], ties by lowest index; 0 <= count <= N.

    1. Find a cut that at least ``count`` magnitudes reach: a little below ``warm`` if given (the answer of
       the last step is near this one's), zero otherwise.
    2. Take the count-th largest among those candidates as the threshold.
    3. Keep what is above it, and of what equals it the lowest indices.

    ``warm`` changes the time, never the answer. ``accumulated`` is not mutated.
    """
    if count == 0:
        return _nothing(accumulated)
    if count == accumulated.numel():
        everything = torch.arange(count, device=accumulated.device)
        return _selection(accumulated, everything, _minimum(magnitudes(accumulated)))
    bits = accumulated.view(torch.int32)
    places = _candidates(bits, count, 0 if warm is None else pattern_of(warm) - _EIGHTH_OCTAVE)
    candidates = patterns_at(bits, places)
    threshold = int(torch.kthvalue(candidates, candidates.numel() - count + 1).values)
    return _selection(accumulated, _largest(places, candidates, threshold, count), threshold)


def group_top_k(accumulated: Tensor, group_size: int, per_group: int, in_last: int) -> Selection:
    """Select the ``per_group`` largest of every ``group_size`` consecutive elements (method C, step 1).

    The last group, if shorter, gives ``in_last`` entries. Ties by lowest index; ``accumulated`` (fp32 [N]) is
    not mutated. Because every group gives the same number, every block of whole groups does.
    """
    elements = accumulated.numel()
    if elements == 0:
        return _nothing(accumulated)
    patterns = magnitudes(accumulated)
    whole = elements - elements % group_size
    parts = []
    if whole:
        parts.append(_row_top_k(patterns[:whole].view(-1, group_size), per_group).flatten())
    if whole < elements:
        parts.append(_row_top_k(patterns[whole:].view(1, -1), in_last).flatten() + whole)
    indices = torch.cat(parts)
    return _selection(accumulated, indices, int(patterns[indices].min()))


def laplace_top_k(accumulated: Tensor, count: int, fewest: int, most: int, warm: float | None) -> Selection:
    """Select by a threshold that ``fewest`` to ``most`` magnitudes of fp32 [N] reach (method E).

    1. Guess the threshold: the last step's, ``warm``, else the Laplace estimate mean|a| * ln(N / count).
    2. List as candidates what reaches a quarter of an octave less than the guess; less still, by steps that
       double, until they are at least ``fewest`` or all the non-zeros. This is the lower end of the method's
       bracket [0, max|a|], reached from above **(r)**: usually the only pass over N.
    3. Bisect between it and the upper end, starting at the guess and counting candidates only, until between
       ``fewest`` and ``most`` magnitudes reach the threshold.
    4. Ties may make the band unreachable: more than ``most`` reach a pattern and fewer than ``fewest`` the
       next. Then keep exactly ``count``, of the tied ones those with the lowest indices.

    Zeros are never selected: a tensor with fewer than ``fewest`` non-zeros gives all of them, possibly none.
    ``accumulated`` is not mutated.
    """
    if count == 0:
        return _nothing(accumulated)
    bits = accumulated.view(torch.int32)
    guess = max(pattern_of(warm) if warm else _laplace_estimate(accumulated, count), 1)
    lower = max(guess - _QUARTER_OCTAVE, 1)
    places = _candidates(bits, fewest, lower, floor=1)
    candidates = patterns_at(bits, places)
    if places.numel() <= most:
        return _selection(accumulated, places, _minimum(candidates))
    threshold = _bisect(candidates, guess, fewest, most)
    kept = places.index_select(0, places_at_least(candidates, threshold))
    if kept.numel() > most:
        kept = _largest(places, candidates, threshold, count)
    return _selection(accumulated, kept, threshold)


def _laplace_estimate(accumulated: Tensor, count: int) -> int:
    """Return the pattern of mean|a| * ln(N / count), the most likely top-k threshold (method E, step 1)."""
    return pattern_of(mean_magnitude(magnitudes(accumulated)) * math.log(accumulated.numel() / count))


def _bisect(candidates: Tensor, guess: int, fewest: int, most: int) -> int:
    """Return a pattern that the band accepts, or the highest that too many candidates reach.

    More than ``most`` candidates reach their own lowest; nothing reaches TOP. Until a probe has found a
    pattern too high, probes go up from ``guess`` by strides that double.
    """
    lower, upper, probe, stride = _minimum(candidates), TOP, guess, _EIGHTH_OCTAVE
    while upper - lower > 1:
        if not lower < probe < upper:
            probe = (lower + upper) // 2
        reached = count_at_least(candidates, probe)
        if fewest <= reached <= most:
            return probe
        if reached > most:
            lower, probe = probe, probe + stride if upper == TOP else 0
            stride *= 2
        else:
            upper, probe = probe, 0
    return lower


def _candidates(bits: Tensor, count: int, start: int, floor: int = 0) -> Tensor:
    """Return the places of all that reach ``start``, or as much less as it takes to have ``count``.

    Not less than ``floor``, though: then there may be fewer.
    """
    probe, stride = max(start, floor), _HALF_OCTAVE
    places = places_at_least(bits, probe)
    while places.numel() < count and probe > floor:
        probe, stride = max(probe - stride, floor), stride * 2
        places = places_at_least(bits, probe)
    return places


def _largest(places: Tensor, candidates: Tensor, threshold: int, count: int) -> Tensor:
    """Return ``count`` of the (increasing) places: all above ``threshold``, and of those at it the first."""
    keep = candidates > threshold
    missing = count - int(torch.count_nonzero(keep))
    keep[(candidates == threshold).nonzero().flatten()[:missing]] = True
    return places[keep]


def _row_top_k(rows: Tensor, count: int) -> Tensor:
    """Return the flat places (int64 [R, count], increasing) of each row's ``count`` largest of int32 [R, G].

    torch.topk breaks ties as it likes. So ask for one more: only where that one equals the last kept is there
    anything to break, and those rows are done again by counting.
    """
    width = rows.shape[1]
    starts = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1) * width
    if count == width:
        return starts + torch.arange(width, device=rows.device)
    values, columns = torch.topk(rows, count + 1, dim=1)
    last = values[:, count - 1]
    columns = columns[:, :count].sort(dim=1).values
    tied = (last == values[:, count]).nonzero().flatten()
    if tied.numel():
        columns[tied] = _first_columns(rows[tied], last[tied].unsqueeze(1), count)
    return columns + starts


def _first_columns(rows: Tensor, last: Tensor, count: int) -> Tensor:
    """Return the columns (int64 [R, count]) above ``last`` [R, 1], and of those equal to it the first."""
    above = rows > last
    equal = rows == last
    missing = count - above.sum(dim=1, keepdim=True)
    keep = above | (equal & (equal.cumsum(dim=1) <= missing))
    return keep.nonzero()[:, 1].view(-1, count)


def _minimum(patterns: Tensor) -> int:
    return int(patterns.min()) if patterns.numel() else 0


def _selection(accumulated: Tensor, indices: Tensor, threshold: int) -> Selection:
    return Selection(indices, accumulated.index_select(0, indices), magnitude_of(threshold))


def _nothing(accumulated: Tensor) -> Selection:
    return _selection(accumulated, torch.empty(0, dtype=torch.int64, device=accumulated.device), 0)
