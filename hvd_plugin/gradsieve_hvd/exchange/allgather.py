"""Every rank sends all of its entries to everyone: none is dropped, and up to P k are applied."""

from __future__ import annotations

from collections.abc import Callable

from gradsieve.codec import ValueDtype
from gradsieve.sparse_gradient import SparseGradient
from gradsieve_hvd.transport.base import Transport, begin_allgather

from .base import Coder, Exchanged, read, refusal, refused_block
from .phases import phase


class AllgatherExchange:
    """Sends (P - 1) k entries per rank, whatever supports the ranks have.

    Args:
        value_dtype: number format of values on the wire.
    """

    def __init__(self, value_dtype: ValueDtype = "float32") -> None:
        self._coder = Coder(value_dtype)

    def exchange(
        self, gradient: SparseGradient, transport: Transport, most: int | None = None, *, refuse: bool = False
    ) -> Exchanged:
        """Return the sum, added up in the order of ranks; see `Exchange`. ``most`` is not looked at."""
        return self.begin(gradient, transport, most, refuse=refuse)()

    def begin(
        self,
        gradient: SparseGradient,
        transport: Transport,
        most: int | None = None,  # noqa: ARG002 - paths are exchangeable
        *,
        refuse: bool = False,
    ) -> Callable[[], Exchanged]:
        """Send the gradient, and return what decodes the others' as they arrive; see `exchange`."""
        gradient, elements = gradient.cpu(), gradient.elements
        if refused := refuse or not gradient.finite:
            message, rejected = refused_block(elements), SparseGradient.nothing(elements)
        else:
            message, rejected = self._coder.encode(gradient)
        with phase("all-gather"):
            arriving = begin_allgather(transport, message)

        def finish() -> Exchanged:
            # What its receivers see, read while the others' travel; the same where nothing was rounded.
            own = read(message, elements) if refused or rejected.count else gradient
            with phase("all-gather"):
                blocks = [
                    own if source == transport.rank else read(each, elements)
                    for source, each in enumerate(arriving())
                ]
            given = tuple(block for block in blocks if block is not None)
            return Exchanged(given, rejected) if len(given) == len(blocks) else refusal(elements)

        return finish
