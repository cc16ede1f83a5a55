"""What connects an optimizer with the other ranks, which in elastic training come and go."""

from __future__ import annotations

from gradsieve.errors import ExchangeError
from gradsieve_hvd.transport.base import Transport

from .elastic_ranks import ElasticRanks
from .exchange_thread import Begun, ExchangeThread, Pending, Result
from .joining import Joining
from .messages import ThreadMessages


class Connection:
    """The thread that exchanges with the other ranks.

    Args:
        transport: to the other ranks, for this object alone; or ranks of elastic training, to which a
            transport is made by `connect`.
        timeout: how long an exchange may take, in seconds.

    messages: to the other ranks. joining: who has joined.
    """

    def __init__(self, transport: Transport | ElasticRanks, timeout: float) -> None:
        self._elastic = transport if isinstance(transport, ElasticRanks) else None
        self._connected, self._timeout = self._elastic is None, timeout
        self._broken_off: BaseException | None = None
        first = transport.unconnected() if isinstance(transport, ElasticRanks) else transport
        self._thread = ExchangeThread(first, timeout)
        self.messages = ThreadMessages(self._thread)
        self.joining = Joining(self.messages)

    @property
    def transport(self) -> Transport:
        """To the other ranks."""
        return self._thread.transport

    @property
    def elastic(self) -> bool:
        """Whether ranks come and go."""
        return self._elastic is not None

    def submit(self, begin: Begun[Result], what: str) -> Pending[Result]:
        """See `ExchangeThread.submit`."""
        return self._thread.submit(begin, what)

    def break_off(self, error: BaseException) -> None:
        """Leave a round in which the others may go on: from here on they may have other weights."""
        if self.messages.size > 1:
            self._broken_off = error

    def connect(self) -> None:
        """Make a transport to the ranks of elastic training, unless there is one; all of them call it.

        Raises:
            ExchangeError: a rank does not take part, or this one has left a round.
        """
        if self._broken_off is not None:
            raise ExchangeError(
                f"a step before this one was broken off on rank {self.messages.rank}, while gradients were "
                "exchanged, and the other ranks may have taken it. Start again from a checkpoint."
            ) from self._broken_off
        if self._elastic is not None and not self._connected:
            self._use(self._elastic.connect())
            self._connected = True

    def disconnect(self) -> None:
        """Forget the transport, if it is one to ranks of elastic training, and who has joined."""
        self.joining.restart()
        if self._elastic is not None:
            self._use(self._elastic.unconnected())
            self._connected, self._broken_off = False, None

    def _use(self, transport: Transport) -> None:
        self._thread = ExchangeThread(transport, self._timeout)
        self.messages.use(self._thread)
