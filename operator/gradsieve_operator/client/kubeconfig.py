"""The cluster that a kubeconfig names, and what commands say when it cannot be reached."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click
import urllib3
from kubernetes import client, config

from gradsieve_operator.foreign_text import one_line

TROUBLES = (client.ApiException, urllib3.exceptions.HTTPError)
"""What a call ends with that the API server refuses, or that does not reach it."""

_DEFAULT_NAMESPACE = "default"
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Target:
    """A cluster and a namespace in it.

    Attributes:
        api: a client of its API server.
        namespace: that was asked for, else the kubeconfig's.
        chosen: whether the namespace was asked for by an option.
    """

    api: client.ApiClient
    namespace: str
    chosen: bool = False

    @property
    def selector(self) -> str:
        """The option by which kubectl finds this namespace."""
        return f" --namespace {self.namespace}" if self.chosen else ""


def options(command: Command) -> Command:
    """Add ``--namespace``, ``--context`` and ``--kubeconfig`` to a command."""
    for option in (
        click.option("--kubeconfig", help="Kubeconfig to use; else $KUBECONFIG or ~/.kube/config."),
        click.option("--context", help="Context of the kubeconfig; else its current one."),
        click.option("--namespace", "-n", help="Namespace; else that of the context."),
    ):
        command = option(command)
    return command


def connect(kubeconfig: str | None, context: str | None, namespace: str | None) -> Target:
    """Read the kubeconfig.

    Raises:
        click.ClickException: there is none, or it cannot be used.
    """
    try:
        api = config.new_client_from_config(kubeconfig, context)  # type: ignore[no-untyped-call]
        contexts, current = config.list_kube_config_contexts(kubeconfig)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError, ValueError) as error:
        raise click.ClickException(
            f"no cluster: {error}. Name a kubeconfig by --kubeconfig or KUBECONFIG."
        ) from error
    found = next((each for each in contexts if each["name"] == context), current)
    own = found["context"].get("namespace") or _DEFAULT_NAMESPACE
    return Target(api, namespace or own, chosen=namespace is not None)


@contextlib.contextmanager
def explaining(what: str) -> Iterator[None]:
    """Turn what the API server refuses, or an unreachable one, into a message for people.

    Raises:
        click.ClickException: says what could not be done, and why.
    """
    try:
        yield
    except TROUBLES as error:
        raise click.ClickException(f"cannot {what}: {in_words(error)}") from error


def in_words(error: Exception) -> str:
    """Return why a call came to nothing, in the API server's own words if there are any."""
    if not isinstance(error, client.ApiException):
        return f"the cluster cannot be reached: {one_line(error)}"
    try:
        said: Mapping[str, Any] = json.loads(error.body or "")
        return one_line(said["message"])
    except (ValueError, KeyError, TypeError):
        return f"the API server answered with status {error.status} {error.reason}"
