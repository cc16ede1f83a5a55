"""What travels between neighbours of a ring, in which order (method C, steps 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gradsieve_hvd.transport.base import Transport

from .phases import phase


def reduce_scatter(
    transport: Transport, first: Tensor, added: Callable[[int, Tensor], Tensor]
) -> tuple[int, Tensor]:
    """Return the number of the block that ends here, and the message with its sum.

    For s = 0 to P - 2 rank i sends block i - s, receives block i - s - 1, and adds its own.

    Args:
        transport: to the other ranks.
        first: message with this rank's share of block i.
        added: given a block's number and the message with it, returns one to which this rank has added its
            share. Called once per block but the first.
    """
    rank, size = transport.rank, transport.size
    message = first
    for step in range(size - 1):
        with phase(f"reduce-scatter, round {step + 1} of {size - 1}"):
            received = transport.send_receive(message, (rank + 1) % size, (rank - 1) % size)
        message = added((rank - step - 1) % size, received)
    return (rank + 1) % size, message


def allgather_blocks(transport: Transport, block: int, message: Tensor) -> list[Tensor]:
    """Return the messages of all blocks, by block; this rank has that of ``block``, as after
    `reduce_scatter`.
    """
    rank, size = transport.rank, transport.size
    messages = {block: message}
    for step in range(size - 1):
        with phase(f"all-gather, round {step + 1} of {size - 1}"):
            received = transport.send_receive(
                messages[(block - step) % size], (rank + 1) % size, (rank - 1) % size
            )
        messages[(block - step - 1) % size] = received
    return [messages[each] for each in range(size)]
