"""An API server in memory for the operator's tests, found by its client as a real one is."""

import io
import socket

import api_server
import pytest

from gradsieve_operator import transitions

RESOURCES = (
    "v1/pods",
    "v1/nodes",
    "v1/secrets",
    "v1/services",
    "v1/serviceaccounts",
    "v1/configmaps",
    "v1/events",
    "networking.k8s.io/v1/networkpolicies",
    "scheduling.k8s.io/v1/priorityclasses",
    "coordination.k8s.io/v1/leases",
    "gradsieve.io/v1alpha1/horovodjobs",
    "gradsieve.io/v1alpha1/compressionpolicies",
)


@pytest.fixture
def stream(monkeypatch):
    """Lines of JSON for what becomes of jobs, as the operator writes them."""
    monkeypatch.setattr(transitions._log, "handlers", [])
    found = io.StringIO()
    transitions.write_to(found)
    yield found
    transitions._log.setLevel("CRITICAL")


@pytest.fixture
def kmock_options():
    return {"cls": api_server.ApiServer}


@pytest.fixture
def server(kmock, tmp_path, monkeypatch):
    """Return the server; KUBECONFIG names it."""
    for resource in RESOURCES:
        kmock.resources[resource] = {}
    for number in (1, 2, 3):
        kmock.objects["v1/nodes", None, f"n{number}"] = api_server.node(f"n{number}")
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(tmp_path, str(kmock.url).rstrip("/"))))
    return kmock


@pytest.fixture
def port():
    """Return a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
