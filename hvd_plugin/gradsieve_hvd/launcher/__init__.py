"""Starts training jobs on the ranks of one machine, on its own network or on an emulated one."""

from gradsieve_hvd.launcher.job import Job, Link, Outcome
from gradsieve_hvd.launcher.rate import format_rate, parse_rate
from gradsieve_hvd.launcher.run import run

__all__ = ["Job", "Link", "Outcome", "format_rate", "parse_rate", "run"]
