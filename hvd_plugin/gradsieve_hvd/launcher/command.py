"""``gradsieve run``."""

from __future__ import annotations

import os
import sys

import click

from gradsieve_hvd.horovod_build.installed import reason_to_rebuild
from gradsieve_hvd.launcher.job import Job, Outcome
from gradsieve_hvd.launcher.link import parse_link
from gradsieve_hvd.launcher.run import run
from gradsieve_hvd.launcher.stragglers import full_quota, parse_straggler

_LINK_HELP = (
    "Give every rank a host of its own, on a link of RATE (100mbit, 1gbit, none) in both directions; "
    "100mbit,2:20mbit where rank 2's is slower."
)
_SLOW_HELP = (
    "Let RANK take FACTOR times as long to compute: 3:4x; wander:4x, one rank at a time; transient:3x, each "
    "now and then. Can be repeated."
)
_TIMEOUT_HELP = "After SECONDS, show every rank's Python stack and end the job with status 124."


@click.command("run")
@click.option("-np", "--ranks", type=int, required=True, metavar="N", help="Number of ranks.")
@click.option("--link", metavar="RATE", help=_LINK_HELP)
@click.option("--slow", multiple=True, metavar="RANK:FACTOR", help=_SLOW_HELP)
@click.option("--gloo", is_flag=True, help="Let Horovod communicate through Gloo instead of MPI.")
@click.option("--timeout", type=float, metavar="SECONDS", help=_TIMEOUT_HELP)
@click.option("--tag-output", is_flag=True, help="Put [RANK] in front of every line.")
@click.argument("program", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
def command(
    ranks: int,
    link: str | None,
    slow: tuple[str, ...],
    gloo: bool,
    timeout: float | None,
    tag_output: bool,
    program: tuple[str, ...],
) -> None:
    r"""Run COMMAND on N ranks of this machine: gradsieve run -np 4 -- python train.py

    Returns the failing rank's exit status. Ctrl-C ends all ranks; Ctrl-\ shows every rank's Python stack.
    """
    if reason := reason_to_rebuild():
        click.secho(f"gradsieve run: {reason}", fg="yellow", err=True)
    emulated = None if link is None else parse_link(link)
    job = Job(program, ranks, emulated, gloo, timeout, tag_output, tuple(map(parse_straggler, slow)))
    outcome = run(job)
    _report(job, outcome)
    sys.exit(outcome.status)


def _report(job: Job, outcome: Outcome) -> None:
    """Say on standard error what the ranks could not: who failed, and what went over the link."""
    if outcome.failure:
        click.secho(f"gradsieve run: {outcome.failure}", fg="red", err=True)
    if job.slow:
        quota = full_quota(job.slow, job.ranks, len(os.sched_getaffinity(0)))
        said = f"quota of a rank {quota:.2f} cores, slow: {' '.join(map(str, job.slow))}"
        click.echo(f"gradsieve run: {said}", err=True)
    if job.link is not None:
        sent = " ".join(f"{count:,}" for count in outcome.bytes_sent)
        ran = f"link {job.link}, {outcome.seconds:.1f} s"
        click.echo(f"gradsieve run: {ran}, bytes sent per rank: {sent}", err=True)
