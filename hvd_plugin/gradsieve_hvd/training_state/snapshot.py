"""What of a training is saved: the part that all ranks have in common, and the part that is a rank's own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from gradsieve.errors import ConfigurationError
from gradsieve.parameter_names import matching
from gradsieve_hvd.optimizers import find_memory, is_served, restart
from gradsieve_hvd.training_state import random_state

_OWN_OF_COMPRESSOR = ("rank", "size", "layers", "policy", "local")


@runtime_checkable
class Stateful(Protocol):
    """A model, an optimizer, a learning rate scheduler, a loss scaler, a sampler, ..."""

    def state_dict(self) -> Any:
        """Return everything that has to be remembered."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take it over."""


@dataclass(frozen=True)
class Training:
    """What a snapshot is taken of. ``values`` is mutable and holds plain numbers, strings, tensors, lists and
    dictionaries.
    """

    model: Stateful
    optimizer: Stateful
    others: Mapping[str, Stateful]
    values: dict[str, Any]

    @property
    def is_served(self) -> bool:
        """Whether a parameter server has the weights, so that any rank can take the snapshot alone."""
        return is_served(self.optimizer)

    def at_one_version(self) -> AbstractContextManager[Any]:
        """Within, model and optimizer have what belongs together and may be captured.

        Raises:
            ConfigurationError: the server has been left.
            ExchangeError: a rank did not answer.
        """
        optimizer: Any = self.optimizer
        return optimizer.consistent(state=True) if self.is_served else nullcontext()

    def capture(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the common and the own part; their tensors may be the live ones, not copies."""
        memory = find_memory(self.optimizer)
        compressor = {} if memory is None else memory.state()
        own = {field: compressor.pop(field) for field in _OWN_OF_COMPRESSOR if field in compressor}
        shared = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "compressor": compressor,
            "others": {name: other.state_dict() for name, other in self.others.items()},
            "values": self.values,
        }
        return shared, {"compressor": own, "random": random_state.capture()}

    def apply(self, shared: dict[str, Any], own: dict[str, Any] | None) -> None:
        """Go on from a snapshot; without an own part residuals and policies start anew, and the random number
        generators stay as they are.

        Raises:
            ConfigurationError: it is of another training.
        """
        self._check(shared)
        compressor = {**shared["compressor"], **(own or {}).get("compressor", {})}
        memory = find_memory(self.optimizer) if shared["compressor"] else None
        take_over = None if memory is None else memory.prepare(compressor, own is not None)
        self.model.load_state_dict(_named_as(shared["model"], self.model.state_dict()))
        self.optimizer.load_state_dict(shared["optimizer"])
        for name, other in self.others.items():
            other.load_state_dict(shared["others"][name])
        self.values.clear()
        self.values.update(shared["values"])
        if take_over is not None:
            take_over()
        if own is not None:
            random_state.restore(own["random"])

    def restart(self) -> None:
        """Make the ranks meet and compare their settings again: they may be others than before."""
        restart(self.optimizer)

    def owed(self) -> float:
        """Return the L2 norm of all that waits in this rank's residuals."""
        memory = find_memory(self.optimizer)
        return 0.0 if memory is None else memory.owed()

    def _check(self, shared: dict[str, Any]) -> None:
        for field, mine in (("others", self.others), ("values", self.values)):
            saved = shared[field]
            if saved.keys() != mine.keys():
                names = ", ".join(f"'{name}'" for name in sorted(saved.keys() ^ mine.keys()))
                raise ConfigurationError(
                    "the commit and this TrainingState differ in what they hold beside model and optimizer: "
                    f"{names}. Give it the same keyword arguments."
                )
        if bool(shared["compressor"]) == (find_memory(self.optimizer) is None):
            raise ConfigurationError(
                "the commit was made with a gradsieve compressor and this training has none, or conversely. "
                "Start with the same compression, or remove the commits."
            )


def _named_as(saved: Any, present: Any) -> Any:
    """Return a model's saved state under the names of the present one, which may be wrapped otherwise."""
    if not (isinstance(saved, Mapping) and isinstance(present, Mapping)) or saved.keys() == present.keys():
        return saved
    names = matching(saved, present)
    return {names.get(name, name): value for name, value in saved.items()}
