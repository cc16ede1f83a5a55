"""Who looks on while a step is made: counters and clocks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Submitted:
    """A gradient that this rank has handed to the exchange.

    name: the parameter's. gradient_bytes: of the gradient as it is. payload_bytes: what is sent of it; None
    if it travels dense, with all its bytes. elements, kept: of a compressed gradient, and how many are sent.
    seconds: that clipping, selecting and encoding it took here.
    """

    name: str
    gradient_bytes: int
    payload_bytes: int | None = None
    elements: int = 0
    kept: int = 0
    seconds: float = 0.0


class StepObserver(Protocol):
    """Is told what happens in a step: of each tensor ``submitted``, ``arrived``, ``applied``, in this order;
    at its end ``committed`` or ``rolled_back``.
    """

    def submitted(self, gradient: Submitted) -> None:
        """A gradient was handed to the exchange."""
        ...

    def waits_for(self, names: Collection[str]) -> None:
        """The rank has nothing else to do; of compressed tensors, these have not arrived yet."""
        ...

    def arrived(self, name: str, size: int) -> None:
        """A tensor's sum is here; ``size``: compressed bytes that all ranks sent of it, 0 for a dense one."""
        ...

    def applied(self, name: str) -> None:
        """The tensor's gradient has been replaced by the sum."""
        ...

    def all_arrived(self) -> None:
        """Nothing is under way any more."""
        ...

    def committed(self) -> None:
        """The optimizer has stepped. The policy has not been told so yet."""
        ...

    def rolled_back(self) -> None:
        """The step is not going to be taken."""
        ...


class SilentObserver:
    """A `StepObserver` that does nothing; others override what they want to be told."""

    def submitted(self, gradient: Submitted) -> None:
        """Do nothing."""

    def waits_for(self, names: Collection[str]) -> None:
        """Do nothing."""

    def arrived(self, name: str, size: int) -> None:
        """Do nothing."""

    def applied(self, name: str) -> None:
        """Do nothing."""

    def all_arrived(self) -> None:
        """Do nothing."""

    def committed(self) -> None:
        """Do nothing."""

    def rolled_back(self) -> None:
        """Do nothing."""


class StepObservers:
    """Tells several, in their order."""

    def __init__(self) -> None:
        self._observers: list[StepObserver] = []

    def add(self, *observers: StepObserver) -> None:
        """Tell these, too, from now on."""
        self._observers += observers

    def remove(self, observer: StepObserver) -> None:
        """Tell this one nothing any more."""
        self._observers.remove(observer)

    def submitted(self, gradient: Submitted) -> None:
        """See `StepObserver`."""
        for observer in self._observers:
            observer.submitted(gradient)

    def waits_for(self, names: Collection[str]) -> None:
        """See `StepObserver`."""
        for observer in self._observers:
            observer.waits_for(names)

    def arrived(self, name: str, size: int) -> None:
        """See `StepObserver`."""
        for observer in self._observers:
            observer.arrived(name, size)

    def applied(self, name: str) -> None:
        """See `StepObserver`."""
        for observer in self._observers:
            observer.applied(name)

    def all_arrived(self) -> None:
        """See `StepObserver`."""
        for observer in self._observers:
            observer.all_arrived()

    def committed(self) -> None:
        """See `StepObserver`."""
        for observer in self._observers:
            observer.committed()

    def rolled_back(self) -> None:
        """See `StepObserver`."""
        for observer in self._observers:
            observer.rolled_back()
