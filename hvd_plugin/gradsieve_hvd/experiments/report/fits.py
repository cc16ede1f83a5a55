"""How close a gradient is to the distribution that a threshold is estimated from (method E's report).

Chen, Liu, Han, J. Zhejiang Univ. (Eng. Sci.) 2021, 55(2):386-394, take gradients for Laplace distributed. The
Wasserstein-1 distance says how far that is from the truth, beside the normal distribution that others assume.
Both are fitted by maximum likelihood around 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradsieve.density import entries_to_keep

POOLED = "all layers"


@dataclass(frozen=True, slots=True)
class Fit:
    """A sample beside its two fitted distributions.

    laplace, normal: Wasserstein-1 distance to each, in units of the sample's mean magnitude.
    guess_ratio: how many elements reach the Laplace estimate mean|a| * ln(N / k), as a multiple of k.
    """

    laplace: float
    normal: float
    guess_ratio: float


@dataclass(frozen=True, slots=True)
class LayerFit:
    """One layer's fits before (fresh) and after (accumulated) its residual is added, in one step."""

    layer: str
    elements: int
    step: int
    fresh: Fit
    accumulated: Fit


@dataclass(frozen=True, slots=True)
class Shape:
    """The density of a sample and of its fits, in units of its mean magnitude.

    points: fp64 [M], increasing; sample, laplace, normal: fp64 [M], densities there.
    """

    points: Tensor
    sample: Tensor
    laplace: Tensor
    normal: Tensor


def fit(sample: Tensor, density: float) -> Fit:
    """Return the fits of a sample (floating point [N], not mutated); all 0 for a sample of zeros."""
    ordered = sample.sort().values.double()
    mean = float(ordered.abs().mean())
    if mean == 0:
        return Fit(0.0, 0.0, 0.0)
    wanted = entries_to_keep(density, ordered.numel())
    guess = mean * math.log(ordered.numel() / wanted)
    return Fit(
        laplace=distance(ordered, laplace_quantiles(ordered.numel()) * mean) / mean,
        normal=distance(ordered, normal_quantiles(ordered.numel()) * _deviation(ordered)) / mean,
        guess_ratio=int((ordered.abs() >= guess).sum()) / wanted,
    )


def layer_fits(
    fresh: Mapping[str, Tensor], accumulated: Mapping[str, Tensor], density: float, step: int
) -> list[LayerFit]:
    """Return the fits of every layer and, last, of all their elements together."""
    pairs = {name: (fresh[name], accumulated[name]) for name in fresh}
    pairs[POOLED] = torch.cat([*fresh.values()]), torch.cat([*accumulated.values()])
    return [
        LayerFit(name, before.numel(), step, fit(before, density), fit(after, density))
        for name, (before, after) in pairs.items()
    ]


def distance(ordered_N: Tensor, quantiles_N: Tensor) -> float:
    """Return the Wasserstein-1 distance of two samples of one size, both sorted."""
    return float((ordered_N - quantiles_N).abs().mean())


def laplace_quantiles(number: int) -> Tensor:
    """Return the ``number`` middle quantiles of the Laplace distribution of mean magnitude 1, fp64."""
    level = _levels(number)
    return torch.where(level < 0.5, (2 * level).log(), -(2 - 2 * level).log())


def normal_quantiles(number: int) -> Tensor:
    """Return the ``number`` middle quantiles of the standard normal distribution, fp64."""
    quantiles: Tensor = torch.special.ndtri(_levels(number))
    return quantiles


def shape(sample: Tensor, reach: float = 15.125, bins: int = 121) -> Shape:
    """Return the densities of a sample, not all zeros, within ``reach`` mean magnitudes of 0.

    An odd number of ``bins`` keeps zeros in the middle of one.
    """
    scaled = sample.double() / sample.double().abs().mean()
    width = 2 * reach / bins
    points = torch.linspace(-reach + width / 2, reach - width / 2, bins, dtype=torch.float64)
    counts = torch.histc(scaled, bins, -reach, reach)
    deviation = _deviation(scaled)
    return Shape(
        points=points,
        sample=counts / (scaled.numel() * width),
        laplace=(-points.abs()).exp() / 2,
        normal=(-0.5 * (points / deviation) ** 2).exp() / (deviation * math.sqrt(2 * math.pi)),
    )


def _levels(number: int) -> Tensor:
    return (torch.arange(number, dtype=torch.float64) + 0.5) / number


def _deviation(sample: Tensor) -> float:
    return float(sample.square().mean().sqrt())
