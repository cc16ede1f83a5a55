"""A rank's weights, which a parameter server replaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from gradsieve.errors import PayloadError
from gradsieve_hvd.server.reply import NewWeights, unpacked_weights


class ServedWeights:
    """The parameters of a model, by number.

    Args:
        named: the parameters; a tensor's number is its place here.
    """

    def __init__(self, named: Sequence[tuple[str, Parameter]]) -> None:
        self._named = named

    def put(self, tensors: Mapping[int, tuple[Tensor, bool]]) -> None:
        """Overwrite the parameters by what arrived for all of them, by number, and whether it is all of each.

        Raises:
            PayloadError: something is damaged, or of another size; no parameter has changed.
        """
        new = [self._new(number, *tensors[number]) for number in range(len(self._named))]
        for (_, parameter), each in zip(self._named, new, strict=True):
            each.put_into(parameter)

    def copies(self) -> list[Tensor]:
        """Return copies of the parameters, for `restore`."""
        return [parameter.detach().clone() for _, parameter in self._named]

    def restore(self, values: Sequence[Tensor]) -> None:
        """Overwrite the parameters, in their order."""
        with torch.no_grad():
            for (_, parameter), value in zip(self._named, values, strict=True):
                parameter.copy_(value)

    def _new(self, number: int, packed: Tensor, whole: bool) -> NewWeights:
        name, parameter = self._named[number]
        try:
            return unpacked_weights(packed, parameter, whole=whole)
        except PayloadError as error:
            raise PayloadError(
                f"weights of '{name}': {error}; all ranks must train the same model"
            ) from error
