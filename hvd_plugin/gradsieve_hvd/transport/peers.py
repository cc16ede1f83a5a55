"""What a dense sum needs of a transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

Wait = Callable[[], None]


class Peers(Protocol):
    """Messages to and from the other ranks; those between two ranks arrive in the order of sending."""

    def send(self, values: Tensor, to: int) -> Wait:
        """Begin to send (fp32 [N], CPU); what is returned waits until its memory may be written again."""
        ...

    def receive(self, into: Tensor, source: int) -> Wait:
        """Begin to receive into ``into`` (fp32 [N], CPU); what is returned waits until it is there."""
        ...
