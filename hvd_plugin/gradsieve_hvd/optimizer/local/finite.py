"""Which gradients hold NaN or infinity, with one wait per device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from gradsieve.kernels.magnitude import all_finite
from gradsieve_hvd.engine.tensors import sparse_values


def not_finite(gradients: Iterable[tuple[str, Tensor | None]]) -> set[str]:
    """Return the names of those that are not finite.

    1. Add up each one: NaN and infinity survive every sum.
    2. Look at all sums of a device at once.
    3. Finite numbers can overflow in a sum: only then look at every element.
    """
    by_device: defaultdict[torch.device, list[tuple[str, Tensor]]] = defaultdict(list)
    for name, gradient in gradients:
        if gradient is not None:
            values = sparse_values(gradient) if gradient.is_sparse else gradient
            by_device[values.device].append((name, values.detach()))
    found: set[str] = set()
    for named in by_device.values():
        sums = torch.stack([values.sum(dtype=torch.float32) for _, values in named])
        if not torch.isfinite(sums).all():
            found |= {name for name, values in named if not all_finite(values)}
    return found
