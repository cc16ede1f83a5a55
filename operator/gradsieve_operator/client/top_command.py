"""``gradsieve top``: the jobs of a cluster, live in a terminal or once for scripts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
from kubernetes import client
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gradsieve_operator import contract
from gradsieve_operator.client import kubeconfig
from gradsieve_operator.client.job_rows import HEADER, JobRow, job_rows
from gradsieve_operator.client.kubeconfig import Target, explaining
from gradsieve_operator.client.submission import Manifest

_PAGE = 500
_CALL_SECONDS = 30.0
_GAP = "   "


@click.command("top")
@click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="Jobs of all namespaces.")
@click.option("--once", is_flag=True, help="Print one plain table, for scripts, and end.")
@click.option(
    "--interval", type=click.FloatRange(0.5), default=2.0, show_default=True, help="Seconds between looks."
)
@kubeconfig.options
def command(*, everywhere: bool, once: bool, interval: float, **cluster: str | None) -> None:
    """Watch the jobs of a namespace: what they do, how fast, and what compression saves.

    All of it is from the jobs' status: it needs no right but to read HorovodJobs, and is up to half a minute
    old. Single ranks' times are in the metrics of the job's coordinator. What is no terminal gets one plain
    table.
    """
    target = kubeconfig.connect(**cluster)
    where = None if everywhere else target.namespace
    with explaining("list the jobs"):
        rows = job_rows(_jobs(target, where))
    if once or not sys.stdout.isatty():
        click.echo(_plain(rows))
        return
    _watch(target, where, rows, interval)


def _jobs(target: Target, namespace: str | None) -> Iterator[Manifest]:
    """Yield the jobs of a namespace, None for all."""
    custom: Any = client.CustomObjectsApi(target.api)
    kind = (contract.GROUP, contract.VERSION)
    more = ""
    while True:
        asked = {"limit": _PAGE, "_request_timeout": _CALL_SECONDS, **({"_continue": more} if more else {})}
        if namespace is None:
            page = custom.list_cluster_custom_object(*kind, contract.JOB_PLURAL, **asked)
        else:
            page = custom.list_namespaced_custom_object(*kind, namespace, contract.JOB_PLURAL, **asked)
        yield from page["items"]
        more = page["metadata"].get("continue", "")
        if not more:
            return


def _plain(rows: Sequence[JobRow]) -> str:
    lines = [HEADER, *(row.cells for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        _GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _watch(target: Target, namespace: str | None, rows: Sequence[JobRow], interval: float) -> None:
    """Show the jobs until Ctrl-C; what cannot be read for a while is said below the last that could."""
    console = Console()
    with Live(_screen(rows), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval)
                try:
                    rows, trouble = job_rows(_jobs(target, namespace)), ""
                except kubeconfig.TROUBLES as error:
                    trouble = kubeconfig.in_words(error)
                live.update(_screen(rows, trouble), refresh=True)
        except KeyboardInterrupt:
            return


def _screen(rows: Sequence[JobRow], trouble: str = "") -> Group:
    table = Table(box=None, header_style="bold")
    for name in HEADER:
        table.add_column(name, no_wrap=name in {"STATE", "STEP"}, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row.cells), style="red" if row.needs_attention else None)
    now = time.strftime("%H:%M:%S")
    # Below the table, not its caption, which would be folded at the table's width.
    footer = f"{now}  not up to date: {trouble}" if trouble else f"{now}  Ctrl-C ends"
    return Group(table, Text(footer, style="red" if trouble else "dim"))
