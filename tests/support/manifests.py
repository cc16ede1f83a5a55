"""Manifests that are refused, and the CRDs' schemas as JSON Schema.

`creations`, `updates` and `policies` are tables (tests/operator/invalid) that are checked here without and in
the end-to-end tests with a real API server.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
INVALID = ROOT / "tests/operator/invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A manifest and a part of the message that refuses it.

    by: ``"schema"``, ``"rule"`` or ``"operator"``.
    """

    name: str
    manifest: dict[str, Any]
    by: str
    says: str


def base() -> dict[str, Any]:
    """Return the valid job that all cases change."""
    return yaml.safe_load((INVALID / "base.yaml").read_text())


def policy() -> dict[str, Any]:
    """Return the valid policy that all cases of policies change."""
    return {
        "apiVersion": "gradsieve.io/v1alpha1",
        "kind": "CompressionPolicy",
        "metadata": {"name": "base"},
        "spec": {"algorithm": "Laplace", "densityPermille": 10},
    }


def policies() -> list[Refused]:
    """Return the policies that cannot be created."""
    return _cases("policies.yaml", policy)


def creations() -> list[Refused]:
    """Return the manifests that cannot be created (by "operator": can, but never run)."""
    return _cases("creations.yaml", base)


def updates() -> list[Refused]:
    """Return the manifests that the running `base` cannot be changed to."""
    return _cases("updates.yaml", base)


def operator_roles(kind: str) -> list[dict[str, Any]]:
    """Return the operator's own roles of a kind; those that users get are named otherwise."""
    found = yaml.safe_load_all((ROOT / "manifests/rbac.yaml").read_text())
    return [
        each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, "gradsieve-operator")
    ]


def operator_rights(kind: str) -> set[tuple[str, str, str]]:
    """Return group, resource and verb of all that the operator's roles of a kind allow."""
    return {
        (group, resource, verb)
        for role in operator_roles(kind)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a structural schema as JSON Schema that refuses unknown fields, as strict clients do."""
    result = {key: copy.deepcopy(value) for key, value in schema.items() if not key.startswith("x-")}
    if "properties" in schema:
        result["properties"] = {name: json_schema(field) for name, field in schema["properties"].items()}
        result["additionalProperties"] = schema.get("x-kubernetes-preserve-unknown-fields", False)
    if isinstance(schema.get("items"), dict):
        result["items"] = json_schema(schema["items"])
        result["uniqueItems"] = schema.get("x-kubernetes-list-type") == "set"
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = json_schema(schema["additionalProperties"])
    return result


def _cases(file: str, valid: Callable[[], dict[str, Any]]) -> list[Refused]:
    table = yaml.safe_load((INVALID / file).read_text())
    return [
        Refused(name=row["name"], manifest=_changed(row, valid()), by=row.get("by", "rule"), says=row["says"])
        for row in table
    ]


def _changed(row: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    path = row.get("set") or row["remove"]
    *way, last = path.strip("/").split("/")
    target: Any = manifest
    for step in way:
        target = target[int(step)] if isinstance(target, list) else target.setdefault(step, {})
    key = int(last) if isinstance(target, list) else last
    if "set" in row:
        target[key] = row["to"]
    else:
        del target[key]
    return manifest


def without_nulls(value: Any) -> Any:
    """What the API server keeps of a merge patch."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
