"""Kubernetes and what belongs to it, compiled from the Go modules that lie beside this file in `go/`.

Each module names one version, so that every program gets exactly the dependencies that its authors tested it
with; go.sum pins them by content. A module is compiled when one of its programs is first asked for.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from cluster.cache import built_once, digest, file_parts
from cluster.errors import ClusterError
from cluster.mended import MENDED, mend

MODULES = Path(__file__).with_name("go")
# Module -> what `go build` is given. `tool` stands for all tools that the module's go.mod names.
_TARGETS = {
    "kubernetes": "tool",
    "kubernetes-oldest": "tool",
    "etcd": "go.etcd.io/etcd/server/v3",
    "coredns": ".",
    "pause": ".",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
    "helm": "helm.sh/helm/v4/cmd/helm",
}
_KUBERNETES = {
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
}
_OLDEST = "kubernetes-oldest"
PROGRAMS = sorted(_KUBERNETES | set(_TARGETS) - {"kubernetes", _OLDEST})
OLDEST_PROGRAMS = ("kube-apiserver", "kube-scheduler")
_STATIC = {"pause"}
_TAGS = {_OLDEST: "providerless"}
_BUILD_SECONDS = 3600


def program(name: str, *, oldest: bool = False) -> Path:
    """Return a program, compiling its module when sources, version or flags are new.

    Args:
        name: one of :data:`PROGRAMS`.
        oldest: of the oldest supported Kubernetes; then one of :data:`OLDEST_PROGRAMS`.

    Raises:
        ClusterError: the module does not compile (or cannot be downloaded).
    """
    module = _OLDEST if oldest else "kubernetes" if name in _KUBERNETES else name
    folder = MODULES / module
    sources = [path for pattern in ("go.mod", "go.sum", "*.go") for path in folder.glob(pattern)]
    mended = MENDED[module].parts() if module in MENDED else []
    key = digest([*file_parts(folder, sources), *_command(Path(), module), *mended])
    return built_once(module, key, lambda output: _compile(output, module)) / name


def kubernetes_version(*, oldest: bool = False) -> str:
    """Return the version of Kubernetes that is compiled, as its go.mod says."""
    said = (MODULES / (_OLDEST if oldest else "kubernetes") / "go.mod").read_text()
    found = re.search(r"^(?:require)?\s*k8s\.io/kubernetes v(\S+)", said, re.MULTILINE)
    assert found
    return found[1]


def _compile(output: Path, module: str) -> None:
    print(f"cluster: compiling {module}", file=sys.stderr, flush=True)
    environment = {**os.environ, "GOFLAGS": ""} | ({"CGO_ENABLED": "0"} if module in _STATIC else {})
    command = _command(output, module)
    with tempfile.TemporaryDirectory() as scratch:
        if module in MENDED:
            modfile = mend(MENDED[module], MODULES / module, Path(scratch))
            # The flag comes before what is to be built.
            command.insert(2, f"-modfile={modfile}")
        done = subprocess.run(
            command,
            cwd=MODULES / module,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
        )
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} in {MODULES / module}:\n{done.stderr[-4000:]}")


def _command(output: Path, module: str) -> list[str]:
    target, flags = _TARGETS[module], "-s -w"
    if module in ("kubernetes", _OLDEST):
        version = kubernetes_version(oldest=module == _OLDEST)
        flags += f" -X k8s.io/component-base/version.gitVersion=v{version}"
    # A folder as output keeps the tools' own names; etcd's package is called "server".
    written = f"{output}/" if target == "tool" else f"{output}/{module}"
    tags = [f"-tags={_TAGS[module]}"] if module in _TAGS else []
    return ["go", "build", "-buildvcs=false", "-trimpath", *tags, "-ldflags", flags, "-o", written, target]
