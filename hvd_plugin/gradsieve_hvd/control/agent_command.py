"""``gradsieve agent``."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import click

from gradsieve_hvd.control.address import parse_address
from gradsieve_hvd.control.agent import AgentSettings, run_agent
from gradsieve_hvd.control.contract import COORDINATOR, GENERATION, HOST, POD_UID, PORT, SLOTS, WORKER_GROUP
from gradsieve_hvd.control.messages import Incarnation
from gradsieve_hvd.control.options import log_to_stderr, tls_option

_GPU_SECONDS = 20.0


def gpu_names() -> tuple[str, ...]:
    """Names of this host's NVIDIA GPUs; empty where there are none, or their driver does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        said = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_GPU_SECONDS,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in said.splitlines()[:64])


@click.command("agent")
@tls_option
@click.option("--coordinator", envvar=COORDINATOR, required=True, metavar="HOST:PORT", help="Whom to dial.")
@click.option("--host", envvar=HOST, required=True, metavar="NAME", help="This host, as in its certificate.")
@click.option(
    "--slots", type=click.IntRange(1, 1024), envvar=SLOTS, default=1, help="How many ranks it takes."
)
@click.option("--once", is_flag=True, help="End with the job and its status; else wait for the next job.")
@click.option("--group", envvar=WORKER_GROUP, default="", hidden=True)
@click.option("--uid", envvar=POD_UID, default="", hidden=True)
@click.option("--generation", type=click.IntRange(0), envvar=GENERATION, default=0, hidden=True)
def command(
    tls: Path, coordinator: str, host: str, slots: int, once: bool, group: str, uid: str, generation: int
) -> None:
    """Run on this host what the coordinator hands out. Listens on no port; dials again whenever it must."""
    log_to_stderr(f"agent {host}")
    to = parse_address(coordinator, PORT)
    name = f"[{to.host}]" if ":" in to.host else to.host
    settings = AgentSettings(
        f"https://{name}:{to.port}",
        Incarnation(host, uid or uuid.uuid4().hex),
        slots,
        tls,
        generation,
        group,
        gpu_names(),
        once,
    )
    sys.exit(asyncio.run(run_agent(settings)))
