"""A payload that has been received and found valid."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradsieve.codec.header import Refusal
from gradsieve.errors import PayloadError
from gradsieve.kernels import add_entries
from gradsieve.kernels.magnitude import largest_magnitude


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """One rank's share of one tensor's gradient.

    elements: N of the tensor. epoch: number of the plan it was made under.
    refusal: why the rank sends nothing (Refusal.NONE: it does not refuse).
    indices: int64 [K], strictly increasing, CPU; None if all N values are there.
    values: fp32 [K] (or [N]), finite, CPU.
    """

    elements: int
    epoch: int
    refusal: Refusal
    indices: Tensor | None
    values: Tensor

    @property
    def refused(self) -> bool:
        """Whether the rank sent no gradient in this step."""
        return self.refusal is not Refusal.NONE

    @property
    def count(self) -> int:
        """How many entries have a value."""
        return self.values.numel()

    @property
    def largest(self) -> float:
        """The largest magnitude among the values; 0 if there are none."""
        return largest_magnitude(self.values)

    def add_into(self, total: Tensor, alpha: float = 1.0) -> None:
        """Add ``alpha * values`` to ``total`` (fp32 [N], any device) in place; a refusal adds nothing.

        Raises PayloadError, before anything is added, if ``total`` is not a flat fp32 tensor of N elements.
        """
        if total.shape != (self.elements,) or total.dtype != torch.float32:
            raise PayloadError(
                f"payload of {self.elements} elements: the target is {total.dtype} {list(total.shape)}, "
                f"expected torch.float32 [{self.elements}]; ranks must run the same model"
            )
        if self.refused:
            return
        if self.indices is None:
            total.add_(self.values.to(total.device), alpha=alpha)
        else:
            add_entries(total, self.indices.to(total.device), self.values.to(total.device), alpha)
