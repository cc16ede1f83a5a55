"""Runs a coordinator as a program: its ports, its signals, its last words."""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from gradsieve_hvd.control.address import Address
from gradsieve_hvd.control.api import Api
from gradsieve_hvd.control.children import ENDING
from gradsieve_hvd.control.contract import TERMINATION_LOG
from gradsieve_hvd.control.coordinator import Coordinator
from gradsieve_hvd.control.job_state_machine import End
from gradsieve_hvd.control.listener import Limits, Listener
from gradsieve_hvd.control.messages import Roster
from gradsieve_hvd.control.plain_hosts import Restarts
from gradsieve_hvd.control.readonly import read_only_application
from gradsieve_hvd.control.tls import FOLLOW_SECONDS, Authorities, server_context
from gradsieve_hvd.control.writer import Writer

_LINGER_SECONDS = 30.0
_TERMINATED = 143
_log = logging.getLogger("gradsieve.coordinator")


@dataclass(frozen=True)
class CoordinatorSettings:
    """How a coordinator is started.

    Attributes:
        tls: folder with ``ca.crt``, ``tls.crt`` and ``tls.key``.
        listen: where agents and operator connect, over mutual TLS.
        read_only: where anybody may look, over plain HTTP; None to have no such port.
        roster: for plain hosts; None if an operator will send one.
        restarts: for plain hosts: how often to start anew after lost hosts.
        register_seconds: for plain hosts: how long to wait for their agents.
    """

    tls: Path
    listen: Address
    read_only: Address | None
    roster: Roster | None = None
    restarts: int = 3
    register_seconds: float = 600.0


async def run_coordinator(settings: CoordinatorSettings) -> int:
    """Run a job to its end; returns its exit status.

    1. Listen; on plain hosts, the roster is in force from the start.
    2. Run generations until the job has ended, or a signal says to end it: the ranks first.
    3. With an operator, stay until it has read the end, for at most half a minute.

    Raises:
        GradsieveError: the certificates are unusable, or a port is taken.
    """
    loop = asyncio.get_running_loop()
    told_to_end = asyncio.Event()
    for number in ENDING:
        loop.add_signal_handler(number, told_to_end.set)
    writer = Writer()
    try:
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="gradsieve-", ignore_cleanup_errors=True)
            )
            next_roster = Restarts(settings.restarts) if settings.roster is not None else None
            coordinator = Coordinator(Path(folder), writer.put, next_roster)
            await _listen(coordinator, settings, stack)
            # The listeners have garbage collected often; what is here now stays, and need not be looked at.
            gc.collect()
            gc.freeze()
            if settings.roster is not None:
                await coordinator.set_roster(settings.roster)
            return await _run(coordinator, settings, told_to_end)
    finally:
        writer.close()


async def _run(coordinator: Coordinator, settings: CoordinatorSettings, told_to_end: asyncio.Event) -> int:
    plain = settings.roster is not None
    serving = asyncio.create_task(coordinator.serve(settings.register_seconds if plain else None))
    ending = asyncio.create_task(told_to_end.wait())
    await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if not serving.done():
        _log.info("told to end")
        await coordinator.terminate()
        serving.cancel()
        end = End(_TERMINATED, "the coordinator was told to end")
    else:
        end = serving.result()
        _leave_message(end)
        if not plain:
            await asyncio.wait({asyncio.create_task(coordinator.seen.wait())}, timeout=_LINGER_SECONDS)
    await coordinator.close(end.status)
    return end.status


async def _listen(coordinator: Coordinator, settings: CoordinatorSettings, stack: AsyncExitStack) -> None:
    context = server_context(settings.tls)
    following = asyncio.create_task(_follow(context, settings.tls))
    stack.callback(following.cancel)
    ports = [Listener(Api(coordinator).application(), settings.listen, context, Limits())]
    if settings.read_only is not None:
        application = read_only_application(coordinator, coordinator.started_at)
        ports.append(Listener(application, settings.read_only, None, Limits()))
    for port in ports:
        stack.push_async_callback(port.close)
        await port.start()


async def _follow(context: ssl.SSLContext, folder: Path) -> None:
    authorities = Authorities(context, folder)
    while True:
        await asyncio.sleep(FOLLOW_SECONDS)
        authorities.refresh()


def _leave_message(end: End) -> None:
    path = Path(TERMINATION_LOG)
    if path.is_file():
        path.write_text(end.message[:4096])
