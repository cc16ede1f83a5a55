"""Who the operator says that it is: tokens that expire are replaced, and not asked for with each call."""

import json
import stat

import pytest

from gradsieve_operator.cluster import access
from gradsieve_operator.cluster.access import Access


@pytest.fixture
def tokens(tmp_path, monkeypatch):
    """A kubeconfig whose program tells another token each time; returns the file in which it counts."""
    told = tmp_path / "told"
    program = tmp_path / "token"
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "token-$(wc -l < told)", "expirationTimestamp": "2000-01-01T00:00:00Z"},
    }
    said = json.dumps(credential).replace('"', '\\"')
    program.write_text(f'#!/bin/sh\ncd "$(dirname "$0")"\necho >> told\necho "{said}"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    called = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program)}
    context = {"cluster": "c", "user": "u"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": {**called, "interactiveMode": "Never"}}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(file))
    return told


def test_a_token_is_asked_for_again_after_some_seconds_and_not_with_each_call(tokens):
    now = 0.0
    found = Access.find(clock=lambda: now)
    first = found.headers()["authorization"]
    asked = len(tokens.read_text())
    assert first.startswith("Bearer token-")
    for _ in range(10):
        assert found.headers()["authorization"] == first
    assert len(tokens.read_text()) == asked
    now = access._FRESH_SECONDS
    assert found.headers()["authorization"] != first
