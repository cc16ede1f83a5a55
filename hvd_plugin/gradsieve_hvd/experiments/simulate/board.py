"""Small messages among simulated ranks, which run one after another."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_Key = tuple[str, int]


@dataclass
class Board:
    """Where ``size`` ranks leave their messages: whoever reads does so when all have told theirs.

    told: by name and number of the message, then by rank. read: how many ranks have read them.
    """

    size: int
    told: dict[_Key, dict[int, bytes]] = field(default_factory=dict)
    read: Counter[_Key] = field(default_factory=Counter)

    def rank(self, number: int) -> BoardMessages:
        """Return a rank's part in it."""
        return BoardMessages(number, self)


class BoardMessages:
    """One rank's; see `gradsieve_hvd.transport.messages.Messages`."""

    def __init__(self, rank: int, board: Board) -> None:
        self.rank, self.size = rank, board.size
        self._board = board
        self._numbers: Counter[str] = Counter()

    def tell(self, content: bytes, name: str) -> BoardReplies:
        """Leave a message."""
        key = (name, self._numbers[name])
        self._numbers[name] += 1
        self._board.told.setdefault(key, {})[self.rank] = content
        return BoardReplies(key, self._board)


@dataclass(frozen=True, slots=True)
class BoardReplies:
    """One message of every rank."""

    key: _Key
    board: Board

    def wait(self) -> list[bytes]:
        """Return all messages, by rank; each rank reads them once."""
        told = self.board.told[self.key]
        self.board.read[self.key] += 1
        if self.board.read[self.key] == self.board.size:
            del self.board.told[self.key], self.board.read[self.key]
        return [told[rank] for rank in range(self.board.size)]
