"""``gradsieve coordinator``."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import click

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.control.address import parse_address
from gradsieve_hvd.control.contract import GLOO, LISTEN, MPI, PORT, READ_ONLY_LISTEN
from gradsieve_hvd.control.messages import Roster
from gradsieve_hvd.control.options import log_to_stderr, tls_option
from gradsieve_hvd.control.plain_hosts import parse_hosts
from gradsieve_hvd.control.serve import CoordinatorSettings, run_coordinator
from gradsieve_hvd.horovod_build.installed import reason_to_rebuild

_log = logging.getLogger("gradsieve.coordinator")

_HOSTS_HELP = (
    "Plain hosts with their slots, in the order of the ranks: h1:2,h2:2. An operator sends them otherwise."
)
_MIN_HOSTS_HELP = "Go on without lost hosts as long as N are left. Default: wait for a new agent on each."
_RESTARTS_HELP = "How often to start anew after hosts were lost."
_REGISTER_HELP = "How long to wait for the hosts' agents at most."


@click.command("coordinator")
@tls_option
@click.option("--listen", default=f"0.0.0.0:{PORT}", envvar=LISTEN, show_default=True, metavar="HOST:PORT")
@click.option(
    "--read-only-listen", envvar=READ_ONLY_LISTEN, metavar="HOST:PORT", help="Plain HTTP, to look only."
)
@click.option("--hosts", metavar="LIST", help=_HOSTS_HELP)
@click.option("--gloo", is_flag=True, help="Horovod's Gloo controller, elastic, instead of MPI.")
@click.option("--min-hosts", type=click.IntRange(1), metavar="N", help=_MIN_HOSTS_HELP)
@click.option("--restarts", type=click.IntRange(0), default=3, show_default=True, help=_RESTARTS_HELP)
@click.option(
    "--register-timeout",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help=_REGISTER_HELP,
)
@click.argument("program", metavar="[COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def command(
    tls: Path,
    listen: str,
    read_only_listen: str | None,
    hosts: str | None,
    gloo: bool,
    min_hosts: int | None,
    restarts: int,
    register_timeout: float,
    program: tuple[str, ...],
) -> None:
    """Coordinate one job on several hosts: gradsieve coordinator --tls DIR --hosts h1:2,h2 -- python train.py

    Every host runs `gradsieve agent`. Returns the failing rank's exit status.
    """
    log_to_stderr("coordinator")
    if reason := reason_to_rebuild():
        _log.warning("%s", reason)
    settings = CoordinatorSettings(
        tls,
        parse_address(listen, PORT),
        None if read_only_listen is None else parse_address(read_only_listen, PORT),
        _roster(hosts, program, GLOO if gloo else MPI, min_hosts),
        restarts,
        register_timeout,
    )
    sys.exit(asyncio.run(run_coordinator(settings)))


def _roster(
    hosts: str | None, program: tuple[str, ...], backend: str, min_hosts: int | None
) -> Roster | None:
    if hosts is None:
        if program:
            raise ConfigurationError("a command without --hosts: an operator sends both, or you give both")
        return None
    places = parse_hosts(hosts)
    if not program:
        raise ConfigurationError(
            "no command to run: write it behind --, as in `... --hosts h1 -- python train.py`"
        )
    if min_hosts is not None and min_hosts > len(places):
        raise ConfigurationError(f"--min-hosts {min_hosts}: only {len(places)} hosts are named")
    return Roster(1, program, backend, places, min_hosts=min_hosts)
