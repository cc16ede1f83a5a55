"""The command line of the build: `gradsieve build-horovod`."""

import os
import shutil
import time
from pathlib import Path

import click
from rich.console import Console

from gradsieve.errors import BuildError
from gradsieve_hvd.horovod_build.checks import write_problem
from gradsieve_hvd.horovod_build.environment import Environment, detect
from gradsieve_hvd.horovod_build.installation import install
from gradsieve_hvd.horovod_build.installed import is_installed
from gradsieve_hvd.horovod_build.pipeline import Build
from gradsieve_hvd.horovod_build.progress import shown_on


def describe(environment: Environment) -> str:
    """Return one line that names what Horovod is built for."""
    nccl = f"NCCL {environment.nccl.version}" if environment.nccl else "no NCCL"
    torch = f"torch {environment.torch.version} (C++{environment.torch.cxx_standard})"
    return f"{environment.python}, {torch}, {environment.mpi.version}, {nccl}"


@click.command("build-horovod")
@click.option("--force", is_flag=True, help="Build even if the cache holds the wheel.")
@click.option(
    "--wheel-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also copy the wheel into this folder.",
)
@click.option("--install/--no-install", "wanted", default=True, help="Install it here (default).")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    help="Seconds until giving up.",
)
def command(force: bool, wheel_dir: Path | None, wanted: bool, timeout: float) -> None:
    """Build and install Horovod 0.28.1 for this Python, torch and MPI.

    The released sdist does not compile against torch 2.1 or newer. This raises the C++ standard to what
    torch's headers demand, builds with MPI and Gloo (and NCCL where CUDA is found), makes the library paths
    relative, and keeps the wheel in the user's cache folder.
    """
    console = Console(stderr=True)
    started = time.monotonic()
    environment = detect()
    if wanted and (problem := write_problem(environment.site_packages, "use a virtual environment")):
        raise BuildError(problem)
    console.print(f"build-horovod: for {describe(environment)}", highlight=False, soft_wrap=True)
    with shown_on(console) as progress:
        build = Build(environment, os.environ, progress, timeout)
        wheel = build.wheel(force=force)
        if wanted and (force or not is_installed(build.facts)):
            progress.phase("installing")
            install(wheel)
    if wheel_dir is not None:
        wheel_dir.mkdir(parents=True, exist_ok=True)
        shutil.copy2(wheel, wheel_dir)
    state = "installed" if wanted else "built"
    console.print(
        f"build-horovod: {state} in {time.monotonic() - started:.0f} s; wheel: {wheel}",
        highlight=False,
        soft_wrap=True,
    )
