"""What is left of an exchange that was begun, where it has two rounds of messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Protocol, TypeVar, runtime_checkable

Between = TypeVar("Between")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)
Other = TypeVar("Other")


@runtime_checkable
class Advancing(Protocol[Result_co]):
    """The rest of an exchange whose first round can be waited for by itself.

    Whoever has several under way advances all of them before finishing one: then the second round of one
    travels behind the first rounds of the others, and the link does not rest meanwhile.
    """

    def advance(self) -> None:
        """Wait for the messages of the first round, and send those of the second; once.

        Raises:
            ExchangeError, PayloadError: as the exchange.
        """
        ...

    def __call__(self) -> Result_co:
        """Advance, if nobody has, and return what came of the second round."""
        ...


class Rest(Generic[Between, Result]):
    """An `Advancing` made of two functions.

    Args:
        first: waits for the first round, sends the second, and returns what ``last`` needs.
        last: waits for the second.
    """

    def __init__(self, first: Callable[[], Between], last: Callable[[Between], Result]) -> None:
        self._first, self._last = first, last
        self._between: list[Between] = []

    def advance(self) -> None:
        """See `Advancing`."""
        if not self._between:
            self._between.append(self._first())

    def __call__(self) -> Result:
        """See `Advancing`."""
        self.advance()
        return self._last(self._between.pop())


def following(
    inner: Callable[[], Other],
    outer: Callable[[], Result],
    within: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Callable[[], Result]:
    """Return ``outer``, which calls ``inner``; it can be advanced if ``inner`` can, ``within`` a context."""
    if not isinstance(inner, Advancing):
        return outer

    def first() -> None:
        with within():
            inner.advance()

    return Rest(first, lambda _: outer())
