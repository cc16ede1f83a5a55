"""What the demo compares: plain Horovod, Horovod's own fp16, and gradsieve's selectors."""

from __future__ import annotations

from typing import Any

from gradsieve.config import ALGORITHMS

SPARSE = tuple(ALGORITHMS)
METHODS = ("dense", "fp16", *SPARSE)
USUAL = ("dense", "fp16", "topk", "group_topk", "laplace")  # what the demo trains unless told otherwise


def compression(method: str, density: float) -> Any:
    """The ``compression=`` argument of ``hvd.DistributedOptimizer`` for a method's name in results.json."""
    import horovod.torch as hvd

    import gradsieve_hvd

    if method == "dense":
        return hvd.Compression.none
    if method == "fp16":
        return hvd.Compression.fp16
    return getattr(gradsieve_hvd.Compression, method)(density=density)
