"""The compression that a HorovodJob asks for, for the training program that runs in it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from gradsieve import ImportanceConfig, LayeredConfig
from gradsieve.config import ALGORITHMS
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.control.contract import COMPRESSION

from .compressor import Compression, HorovodCompressor

MAKERS: Final[Mapping[str, Callable[..., HorovodCompressor]]] = {
    each.kind: getattr(Compression, each.name) for each in ALGORITHMS.values()
}
STOCK: Final = {"None": "none", "FP16": "fp16"}
"""Horovod's own: algorithm -> name in ``horovod.torch.Compression``."""


def job_compression(default: Any = None, **settings: Any) -> Any:
    """Return what to give to ``hvd.DistributedOptimizer(compression=...)``.

    1. Outside of a HorovodJob, and in one that leaves compression to its program: ``default``.
    2. In a job that names an algorithm: that one, with the job's densities and ``settings``.
    3. In a job that gives densities only: ``default`` with these in place of its own.

    Args:
        default: a compressor, or None for Horovod's own without compression.
        settings: what the constructors of `Compression` take besides densities, such as ``grad_scaler``.

    Raises:
        ConfigurationError: the job's settings are not allowed, or contradict ``default``.
    """
    asked = json.loads(os.environ.get(COMPRESSION) or "{}")
    algorithm = asked.get("algorithm")
    if algorithm in MAKERS:
        return _laid_over(MAKERS[algorithm](**settings), asked)
    if algorithm in STOCK or (default is None and not asked):
        stock = importlib.import_module("horovod.torch").Compression
        return getattr(stock, STOCK.get(algorithm, "none"))
    if algorithm is not None:
        raise ConfigurationError(
            f"{COMPRESSION}: algorithm={algorithm!r} is not known to this version of gradsieve; known are "
            f"{', '.join((*STOCK, *MAKERS))}"
        )
    if not asked:
        return default
    if not isinstance(default, HorovodCompressor):
        raise ConfigurationError(
            f"the job gives densities ({', '.join(asked)}) and no algorithm, and the program compresses with "
            "none that has them: give spec.compression.algorithm, or a default to job_compression()"
        )
    return _laid_over(default, asked)


def _laid_over(compressor: HorovodCompressor, asked: Mapping[str, Any]) -> HorovodCompressor:
    """Return ``compressor`` with the densities that are asked for; bounds that are not give way to them."""
    config = compressor.config
    density = asked["densityPermille"] / 1000 if "densityPermille" in asked else config.density
    changed: dict[str, Any] = {"density": density}
    if isinstance(config, LayeredConfig | ImportanceConfig):
        least, most = min(config.bounds[0], density), max(config.bounds[1], density)
        if "minDensityPermille" in asked:
            least = asked["minDensityPermille"] / 1000
        if "maxDensityPermille" in asked:
            most = asked["maxDensityPermille"] / 1000
        changed["bounds"] = (least, most)
    return dataclasses.replace(compressor, config=dataclasses.replace(config, **changed))
