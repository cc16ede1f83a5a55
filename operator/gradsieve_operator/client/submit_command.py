"""``gradsieve submit``: train a program on a cluster, and see it through to its end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click
import yaml
from kubernetes import client

from gradsieve_operator import contract
from gradsieve_operator.client import kubeconfig
from gradsieve_operator.client.following import Follower
from gradsieve_operator.client.kubeconfig import Target, explaining
from gradsieve_operator.client.submission import Manifest, Submission, config_map, job, job_name, products
from gradsieve_operator.errors import OperatorError
from gradsieve_operator.placement.eligibility import GPU_PRODUCT
from gradsieve_operator.spec.values import ALGORITHMS, BACKENDS, MAX_BACKOFF, MAX_SLOTS, MAX_WORKERS

_INTERRUPTED_EXIT_STATUS = 130
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Readable(yaml.SafeDumper):
    """Writes texts of several lines, such as programs, as they are."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Readable.add_representer(str, _represent_text)


@click.command("submit")
@click.argument("program", type=_FILE)
@click.argument("arguments", nargs=-1)
@click.option("--name", help="Of the job; else from the program's file name.")
@click.option("--image", envvar="GRADSIEVE_IMAGE", default="", help="To train in; else $GRADSIEVE_IMAGE.")
@click.option("--workers", type=click.IntRange(1, MAX_WORKERS), default=1, show_default=True, help="Pods.")
@click.option("--min-workers", type=click.IntRange(1, MAX_WORKERS), help="With how many it goes on.")
@click.option(
    "--slots", type=click.IntRange(1, MAX_SLOTS), default=1, show_default=True, help="Ranks in each worker."
)
@click.option(
    "--gpu", "gpus", multiple=True, metavar="PRODUCT",
    help="One GPU of this product (NVIDIA-A100-SXM4-80GB, or A100) for each rank; several: best first.",
)  # fmt: skip
@click.option("--cpu", default="", help="That each worker requests: 500m, 4.")
@click.option("--memory", default="", help="That each worker requests, and is limited to: 2Gi.")
@click.option(
    "--backend", type=click.Choice(BACKENDS, case_sensitive=False), default="MPI", show_default=True
)
@click.option("--compression", type=click.Choice(ALGORITHMS, case_sensitive=False), help="Algorithm.")
@click.option("--density", type=click.FloatRange(0.001, 1.0), help="Share of entries that is sent: 0.01.")
@click.option("--retries", type=click.IntRange(0, MAX_BACKOFF), help="Restarts after failures; else 3.")
@click.option("--env", "environment", multiple=True, metavar="NAME=VALUE", help="Variable of every rank.")
@click.option("--file", "files", multiple=True, type=_FILE, help="Further file, put beside the program.")
@click.option("--template", type=_FILE, help="PodTemplateSpec (YAML) to start from: volumes, tolerations …")
@click.option("--dry-run", is_flag=True, help="Print the manifests and create nothing.")
@click.option("--detach", is_flag=True, help="Do not follow the job.")
@kubeconfig.options
def command(program: Path, *, dry_run: bool, detach: bool, **asked: Any) -> None:
    """Train PROGRAM on a cluster: make a HorovodJob, follow its log, end with its exit status.

    ARGUMENTS are the program's; what begins with a dash comes after `--`. The program and each --file are put
    into a ConfigMap that belongs to the job, mounted at /workspace.
    """
    target = _target(asked, optional=dry_run)
    try:
        submission = _submission(program, asked, target)
        manifests = (job(submission), config_map(submission))
    except OperatorError as error:
        raise click.ClickException(str(error)) from error
    if dry_run:
        click.echo("# The ConfigMap belongs to nobody when kubectl applies this: delete it after the job.")
        click.echo(yaml.dump_all(manifests, Dumper=_Readable, sort_keys=False), nl=False)
        return
    assert target is not None
    _create(target, submission)
    if detach:
        click.echo(f"{submission.name} was submitted", err=True)
        return
    sys.exit(_follow(target, submission.name))


def _target(asked: Mapping[str, Any], *, optional: bool) -> Target | None:
    try:
        return kubeconfig.connect(**{name: asked[name] for name in ("kubeconfig", "context", "namespace")})
    except click.ClickException:
        if optional:
            return None
        raise


def _submission(program: Path, asked: Mapping[str, Any], target: Target | None) -> Submission:
    """Read files and options.

    Raises:
        OperatorError: they make no job.
    """
    sent = {"algorithm": asked["compression"]}
    if asked["density"] is not None:
        sent["densityPermille"] = round(1000 * asked["density"])
    template = yaml.safe_load(asked["template"].read_text()) if asked["template"] else {}
    namespace = asked["namespace"] or (target.namespace if target is not None else "default")
    return Submission(
        name=asked["name"] or job_name(program.name),
        namespace=namespace,
        program=program.name,
        files={path.name: _text(path) for path in (program, *asked["files"])},
        arguments=asked["arguments"],
        image=asked["image"],
        workers=asked["workers"],
        slots=asked["slots"],
        min_workers=asked["min_workers"],
        retries=asked["retries"],
        gpu_products=_gpu_products(asked["gpus"], target),
        resources={"cpu": asked["cpu"], "memory": asked["memory"]},
        environment=_environment(asked["environment"]),
        backend=asked["backend"],
        compression={name: value for name, value in sent.items() if value is not None},
        template=template or {},
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise click.BadParameter(
            f"{path} is not a text file; put it into the image or onto a volume"
        ) from error


def _environment(given: Iterable[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    for name, sign, _ in pairs:
        if not name or not sign:
            raise click.BadParameter(f"{name!r} gives no value; write NAME=VALUE", param_hint="--env")
    return {name: value for name, _, value in pairs}


def _gpu_products(wanted: tuple[str, ...], target: Target | None) -> list[str]:
    """Return the products that are meant, as the cluster's nodes are labelled; as they were given where
    nodes cannot be read.
    """
    if not wanted:
        return []
    present = None if target is None else _present_products(target)
    if present is None:
        click.echo("nodes cannot be read: --gpu is taken for the whole name of a product", err=True)
        return list(wanted)
    return products(wanted, present)


def _present_products(target: Target) -> list[str] | None:
    """Return the GPU products of the cluster's nodes; None for who may not read nodes."""
    core: Any = client.CoreV1Api(target.api)
    with explaining("read which GPUs the nodes have"):
        try:
            nodes = core.list_node(label_selector=GPU_PRODUCT).items
        except client.ApiException as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return None
    return [node.metadata.labels[GPU_PRODUCT] for node in nodes]


def _create(target: Target, submission: Submission) -> None:
    """Create job and ConfigMap.

    The job comes first, held back, since the ConfigMap names it as its owner; it starts once both are there.
    """
    where = (contract.GROUP, contract.VERSION, target.namespace, contract.JOB_PLURAL)
    custom: Any = client.CustomObjectsApi(target.api)
    core: Any = client.CoreV1Api(target.api)
    held = job(submission)
    held["spec"]["suspend"] = True
    with explaining(f"create the job {submission.name}"):
        made: Manifest = custom.create_namespaced_custom_object(*where, held)
    try:
        with explaining(f"create the ConfigMap {submission.config_map_name}"):
            owned = config_map(submission, owner=made["metadata"]["uid"])
            core.create_namespaced_config_map(target.namespace, owned)
        with explaining(f"start the job {submission.name}"):
            start, kind = {"spec": {"suspend": False}}, "application/merge-patch+json"
            custom.patch_namespaced_custom_object(*where, submission.name, start, _content_type=kind)
    except click.ClickException:
        # Nobody waits for a job that never began.
        with explaining(f"delete the job {submission.name}, which was not started"):
            this = {"preconditions": {"uid": made["metadata"]["uid"]}}
            custom.delete_namespaced_custom_object(*where, submission.name, body=this)
        raise


def _follow(target: Target, name: str) -> int:
    follower = Follower(target, name, say=_say, write=click.echo)
    hints = (
        f"follow it:  kubectl{target.selector} logs --follow {contract.coordinator_pod(name, 1)}",
        f"delete it:  kubectl{target.selector} delete hvj {name}",
    )
    try:
        with explaining(f"follow the job {name}, which goes on"):
            end = follower.follow()
    except KeyboardInterrupt:
        click.echo("\n".join(["", f"{name} goes on without you", *hints]), err=True)
        return _INTERRUPTED_EXIT_STATUS
    except OperatorError as error:
        raise click.ClickException(str(error)) from error
    _say(end.words)
    return end.exit_status


def _say(words: str) -> None:
    click.secho(words, fg="cyan", err=True)
