"""The ``gradsieve`` command; each subcommand is imported only when it is called."""

from __future__ import annotations

import importlib

import click

from gradsieve.errors import GradsieveError

_SUBCOMMANDS = {
    "advise": ("gradsieve_hvd.experiments.advise.command", "Say which path is likely to be fastest."),
    "agent": ("gradsieve_hvd.control.agent_command", "Run ranks on this host for a coordinator."),
    "bench": ("gradsieve_hvd.experiments.bench.command", "Measure selecting, encoding and exchanging."),
    "build-horovod": (
        "gradsieve_hvd.horovod_build.command",
        "Build and install Horovod for this torch and MPI.",
    ),
    "certificates": ("gradsieve_hvd.control.certificates_command", "Make a job's TLS certificates."),
    "coordinator": (
        "gradsieve_hvd.control.coordinator_command",
        "Run a job on several hosts through their agents.",
    ),
    "demo": (
        "gradsieve_hvd.experiments.demo.command",
        "Train two models with and without compression and compare.",
    ),
    "launch-agent": (
        "gradsieve_hvd.control.launch_agent_command",
        "Stand in for ssh below a coordinator's mpirun.",
    ),
    "report": ("gradsieve_hvd.experiments.report.command", "Show what gradients of real training look like."),
    "reproduce": (
        "gradsieve_hvd.experiments.reproduce.command",
        "Put the papers' headline claims to the test.",
    ),
    "run": ("gradsieve_hvd.launcher.command", "Run a command on several ranks, also on emulated links."),
    "simulate": ("gradsieve_hvd.experiments.simulate.command", "Compare parallel modes on a virtual clock."),
    # By name only, as all that plug-in and operator share.
    "submit": ("gradsieve_operator.client.submit_command", "Train a program on a Kubernetes cluster."),
    "top": ("gradsieve_operator.client.top_command", "Watch the jobs of a Kubernetes cluster."),
}


_EXTRA_OF = {"matplotlib": "demo", "sklearn": "demo", "mpi4py": "hvd", "psutil": "link", "pyroute2": "link"}
"""What brings a package that commands import when they get to it."""


class _LazyGroup(click.Group):
    """A group that lists its subcommands without importing them, and says what brings a package they lack."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _SUBCOMMANDS:
            return None
        module, _ = _SUBCOMMANDS[cmd_name]
        try:
            found = importlib.import_module(module).command
        except ImportError as error:
            raise click.ClickException(f"`gradsieve {cmd_name}` cannot be used here: {error}") from error
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _SUBCOMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except GradsieveError as error:
            click.secho(f"error: {error}", fg="red", err=True)
            ctx.exit(2)
        except ModuleNotFoundError as error:
            extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
            if extra is None:
                raise
            raise click.ClickException(f"{error}; pip install 'gradsieve[{extra}]' brings it") from error


@click.group(cls=_LazyGroup)
@click.version_option(package_name="gradsieve", prog_name="gradsieve")
def main() -> None:
    """Train with Horovod over slow networks: send only the part of every gradient that matters."""
