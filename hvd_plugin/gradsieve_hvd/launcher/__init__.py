"""Starts training jobs on the ranks of one machine, on its own network or on an emulated one."""

from gradsieve_hvd.launcher.job import Job, Outcome
from gradsieve_hvd.launcher.link import Link, parse_link
from gradsieve_hvd.launcher.rate import format_rate, parse_rate
from gradsieve_hvd.launcher.run import run
from gradsieve_hvd.launcher.stragglers import Straggler, parse_straggler

__all__ = [
    "Job",
    "Link",
    "Outcome",
    "Straggler",
    "format_rate",
    "parse_link",
    "parse_rate",
    "parse_straggler",
    "run",
]
