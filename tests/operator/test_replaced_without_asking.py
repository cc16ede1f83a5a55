"""A lost worker is replaced by what was heard when its loss was seen: the coordinator may be frozen."""

import asyncio
from collections.abc import Callable

import horovod_jobs as jobs
import pytest
from obedient_coordinator import KEY, training
from operator_in_memory import JOB, running, until

from gradsieve_operator import contract
from gradsieve_operator.decide import Pace

ASK = f"GET {contract.PATH_STATUS}"
WORKER = contract.worker_pod("digits", "worker", 1, 1)
REPLACEMENT = contract.worker_pod("digits", "worker", 1, 2)
RARELY = Pace(expecting=60.0)
"""Nobody is asked for another reason meanwhile."""


class CallsBefore(list[str]):
    """Calls of a coordinator until something is so; what follows is not kept."""

    def __init__(self, so: Callable[[], bool]) -> None:
        super().__init__()
        self._so = so

    def append(self, call: str) -> None:
        """Keep a call, unless it is so by now."""
        if not self._so():
            super().append(call)


@pytest.mark.parametrize("answering", [True, False], ids=["answers", "frozen"])
async def test_the_coordinator_is_asked_once_from_a_loss_to_the_replacement(
    server, port, tmp_path, monkeypatch, answering
):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    server.objects[JOB, *KEY] = jobs.body(compression={"algorithm": "TopK", "densityPermille": 10})
    calls = CallsBefore(lambda: REPLACEMENT in server.all("v1/pods"))
    answers = asyncio.Event()
    answers.set()
    async with (
        running(pace=RARELY) as operator,
        training(server, operator, tmp_path, port, calls, answers),
    ):
        await asyncio.sleep(1.0)
        if not answering:
            answers.clear()
        calls.clear()
        del server.objects["v1/pods", "research", WORKER]
        await until(lambda: REPLACEMENT in server.all("v1/pods"))
        assert calls == [ASK]
        answers.set()
