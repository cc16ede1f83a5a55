"""Letters: messages that a rank sends to another one whenever it likes, without the other expecting them.

A parameter server needs them; exchanges, in which all ranks do the same things, need a `Transport` only.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from gradsieve.errors import ConfigurationError

from .base import Transport


class Mail(Protocol):
    """Letters among a transport's ranks: uint8 [bytes] on the CPU, at most 2 GiB. Those from one rank to
    another arrive in the order in which they were posted.

    rank: this one's number. size: how many there are.
    """

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def post(self, letter: Tensor, to: int) -> None:
        """Send a letter, to this rank itself perhaps, without waiting. Callable from any thread.

        letter: not mutated, neither here nor, from now on, by the caller.

        Raises:
            ExchangeError: the transport has failed before.
        """
        ...

    def collect(self, seconds: float) -> tuple[int, Tensor] | None:
        """Return the next letter and who sent it; None if none has come for so long. One thread calls it.

        Raises:
            ExchangeError: the connection to a rank was lost.
        """
        ...

    def close(self, seconds: float) -> None:
        """Wait until all that was posted has left, so long at most. The thread that collects calls it, when
        no rank posts anything more.
        """
        ...


@runtime_checkable
class Mailing(Protocol):
    """A transport that carries letters, too."""

    def open_mail(self) -> Mail:
        """Return this rank's end; on all ranks, and again only when they have closed the one before. What was
        posted through that and never collected does not come.
        """
        ...


def require_mailing(transport: Transport) -> Mailing:
    """Return a transport as one that carries letters.

    Raises:
        ConfigurationError: it does not.
    """
    if isinstance(transport, Mailing):
        return transport
    raise ConfigurationError(
        f"{type(transport).__name__} carries collectives only, and a parameter server needs messages to "
        "single ranks: start the job with MPI and mpi4py, or initialise torch.distributed with gloo"
    )
