"""The chart, in the hands of the real Helm. Run as a program it writes manifests/: `python -m helm_chart`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from cluster.binaries import program
from cluster.commands import run

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "gradsieve"
MANIFESTS = ROOT / "manifests"
NAMESPACE = "gradsieve-system"
_VALUES = ROOT / "helm" / "manifests-values.yaml"
_FILES = ("namespace", "rbac", "operator")
_HEADER = "# Made by `make manifests` from helm/gradsieve; do not edit.\n"


def helm(*arguments: str, environment: dict[str, str] | None = None, timeout: float = 60) -> str:
    """Run Helm and return its standard output.

    Raises:
        ClusterError: it failed; the message holds what it said.
    """
    return run([str(program("helm")), *arguments], environment=environment, timeout=timeout)


def rendered(*options: str, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """Return what an installation with these options consists of, hooks included.

    Raises:
        ClusterError: Helm refuses the options.
    """
    text = helm("template", "release", str(CHART), "--namespace", namespace, *options)
    return [each for each in yaml.safe_load_all(text) if each]


def manifest_files() -> dict[str, str]:
    """Return the text of each file of manifests/ that the chart makes, by its name."""
    files = {}
    for name in _FILES:
        only = f"templates/{name}.yaml"
        where = ("--namespace", NAMESPACE, "--values", str(_VALUES), "--show-only", only)
        text = helm("template", "gradsieve", str(CHART), *where)
        # Templates leave empty lines, and lines of nothing but blanks.
        files[f"{name}.yaml"] = _HEADER + re.sub(r"\n(?:[ ]*\n)+", "\n", text)
    return files


if __name__ == "__main__":
    for file, content in manifest_files().items():
        (MANIFESTS / file).write_text(content)
