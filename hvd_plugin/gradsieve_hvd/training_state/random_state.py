"""The states of the random number generators that a training draws from: Python's, NumPy's, torch's."""

from __future__ import annotations

import random
from typing import Any, cast

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """Return all states, as numbers, strings, tuples and tensors only."""
    # NumPy's old generator is the one that scripts seed; its stub says that this may be a dictionary.
    name, keys, position, has_gauss, cached = cast("tuple[Any, ...]", np.random.get_state())  # noqa: NPY002
    return {
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def restore(state: dict[str, Any]) -> None:
    """Set all generators to captured states; GPUs that this process has more or fewer of are left alone."""
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        for device in range(min(len(state["cuda"]), torch.cuda.device_count())):
            torch.cuda.set_rng_state(state["cuda"][device], device)
