"""``gradsieve top``: the jobs of a cluster, or one's ranks, live in a terminal or once for scripts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
from kubernetes import client
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gradsieve_operator import contract
from gradsieve_operator.client import job_rows, kubeconfig, rank_rows
from gradsieve_operator.client.coordinators import CoordinatorSilent, ask, coordinators
from gradsieve_operator.client.job_rows import JobRow
from gradsieve_operator.client.kubeconfig import Target, explaining
from gradsieve_operator.client.rank_rows import RankRow
from gradsieve_operator.client.submission import Manifest
from gradsieve_operator.errors import SpecError

_PAGE = 500
_CALL_SECONDS = 30.0
_GAP = "   "


@dataclass(frozen=True)
class View:
    """What was seen.

    Attributes:
        tables: each a header and its rows.
        trouble: why something is missing; empty if nothing is.
    """

    tables: tuple[tuple[Sequence[str], Sequence[JobRow | RankRow]], ...]
    trouble: str = ""


@click.command("top")
@click.argument("job", required=False)
@click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="Jobs of all namespaces.")
@click.option("--once", is_flag=True, help="Print plain tables, for scripts, and end.")
@click.option(
    "--interval", type=click.FloatRange(0.5), default=2.0, show_default=True, help="Seconds between looks."
)
@kubeconfig.options
def command(*, job: str | None, everywhere: bool, once: bool, interval: float, **cluster: str | None) -> None:
    """Watch the jobs of a namespace: what they do, how fast, and what compression saves.

    All of it is from the jobs' status: it needs no right but to read HorovodJobs, and is up to half a minute
    old. With JOB that job's ranks are shown, too, the slowest first, as its coordinator tells of them now:
    this needs the rights to list pods and to forward their ports. What is no terminal gets plain tables.
    """
    if job is not None and everywhere:
        raise click.UsageError("JOB is of one namespace: leave --all-namespaces out")
    target = kubeconfig.connect(**cluster)
    where = None if everywhere else target.namespace

    def look() -> View:
        if job is not None:
            return _one_job(target, job)
        return View(((job_rows.HEADER, job_rows.job_rows(_jobs(target, where))),))

    with explaining("list the jobs" if job is None else f"read the job {job}"):
        view = look()
    if not once and sys.stdout.isatty():
        _watch(look, view, interval)
        return
    click.echo("\n\n".join(_plain(header, rows) for header, rows in view.tables))
    if view.trouble:
        click.echo(view.trouble, err=True)


def _one_job(target: Target, name: str) -> View:
    """Return a job's row, its plan, and its ranks'; without these where no coordinator tells of them."""
    custom: Any = client.CustomObjectsApi(target.api)
    core: Any = client.CoreV1Api(target.api)
    where = (contract.GROUP, contract.VERSION, target.namespace, contract.JOB_PLURAL, name)
    found = custom.get_namespaced_custom_object(*where, _request_timeout=_CALL_SECONDS)
    ranks: Sequence[RankRow] = ()
    trouble, loss = "", job_rows.NOTHING
    try:
        running = [pod for pod in coordinators(core, target.namespace, name) if not pod.over]
        if running:
            status = ask(core, target.namespace, running[-1].name)
            ranks, loss = rank_rows.rank_rows(status), rank_rows.loss(status)
        else:
            trouble = "no ranks: no coordinator runs"
    except client.ApiException as error:
        trouble = f"no ranks: {kubeconfig.in_words(error)}"
    except (CoordinatorSilent, SpecError) as error:
        trouble = f"no ranks: {error}"
    row = job_rows.job_row(found)
    plan = job_rows.JobRow((*job_rows.plan_cells(found), loss), row.state)
    tables = ((job_rows.HEADER, [row]), (job_rows.PLAN_HEADER, [plan]), (rank_rows.HEADER, ranks))
    return View(tables, trouble)


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


def _plain(header: Sequence[str], rows: Sequence[JobRow | RankRow]) -> str:
    lines = [header, *(row.cells for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        _GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _watch(look: Callable[[], View], view: View, interval: float) -> None:
    """Show what is seen until Ctrl-C; what cannot be read for a while is said below the last that could."""
    console = Console()
    with Live(_screen(view), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval)
                try:
                    view = look()
                    live.update(_screen(view), refresh=True)
                except kubeconfig.TROUBLES as error:
                    trouble = f"not up to date: {kubeconfig.in_words(error)}"
                    live.update(_screen(View(view.tables, trouble)), refresh=True)
        except KeyboardInterrupt:
            return


def _screen(view: View) -> Group:
    now = time.strftime("%H:%M:%S")
    # Below the tables, not a caption, which would be folded at a table's width.
    footer = f"{now}  {view.trouble or 'Ctrl-C ends'}"
    tables = [_table(header, rows) for header, rows in view.tables]
    return Group(*tables, Text(footer, style="red" if view.trouble else "dim"))


def _table(header: Sequence[str], rows: Sequence[JobRow | RankRow]) -> Table:
    table = Table(box=None, header_style="bold")
    for name in header:
        table.add_column(name, no_wrap=name in {"STATE", "STEP"}, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row.cells), style="red" if row.needs_attention else None)
    return table
