"""What ranks compare before their first push."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn import Parameter

from gradsieve.bit_hash import bit_hash
from gradsieve.errors import RankMismatch
from gradsieve_hvd.engine.settings import Settings
from gradsieve_hvd.engine.settings_check import compare_settings, settings_of
from gradsieve_hvd.optimizer.exchange_thread import ExchangeThread
from gradsieve_hvd.optimizer.messages import ThreadMessages
from gradsieve_hvd.transport.base import Transport


def meeting(
    settings: Settings,
    named: Sequence[tuple[str, Parameter]],
    transport: Transport,
    compared: Mapping[str, str],
) -> Callable[[], None]:
    """Return what compares settings and first weights with the other ranks; it raises `RankMismatch` on all
    of them if some differ.

    named: the parameters. compared: what else must be equal, JSON-able.
    """

    def meet() -> None:
        messages = ThreadMessages(ExchangeThread(transport, settings.timeout_seconds))
        mine = settings_of(settings, named, [name for name, _ in named], **compared)
        compare_settings(mine, None, messages, settings.timeout_seconds)
        hashes = torch.tensor([bit_hash(p) for _, p in named], dtype=torch.int64, device="cpu")
        told = messages.tell(str(bit_hash(hashes)).encode(), "initial weights").wait()
        others = [str(rank) for rank, each in enumerate(told) if each != told[0]]
        if others:
            raise RankMismatch(
                f"ranks {', '.join(others)} begin with other weights than rank 0: call "
                "hvd.broadcast_parameters(model.state_dict(), root_rank=0) before the first step"
            )

    return meet
