"""The schema of a pod template inside a CRD, derived from Kubernetes' own OpenAPI document.

With its descriptions the schema would make the CRD too large for ``kubectl apply`` (262 144 bytes of
annotation); with ``x-kubernetes-preserve-unknown-fields`` instead of a schema, misspelled fields would pass.
The derived schema is package data (``pod_template.json``); after a new Kubernetes release make it again::

    python -m gradsieve_operator.schema.pod_template api__v1_openapi.json

with the file of that name from ``api/openapi-spec/v3`` of the Kubernetes repository or of the Go module
k8s.io/kubernetes (the older ``swagger.json`` names no defaults).
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
_PREFIX = "#/components/schemas/"
_DATA = "pod_template.json"
_KEPT = (
    "type",
    "format",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
)
_EITHER: Schema = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
_SPECIAL: dict[str, Schema] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {
        **_EITHER,
        "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?[0-9]+))?$",
    },
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _EITHER,
    # Of a template's metadata only these reach a pod.
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {
        "type": "object",
        "properties": {
            name: {"type": "object", "additionalProperties": {"type": "string"}}
            for name in ("annotations", "labels")
        },
    },
}
_NEVER_IN_TEMPLATES = {"io.k8s.api.core.v1.PodSpec": {"ephemeralContainers"}}


def derive(document: Schema) -> Schema:
    """Return the structural schema of PodTemplateSpec.

    1. Put each definition where it is referred to.
    2. Keep types, formats, required fields and the kinds of lists and maps; drop texts and defaults. A
       structural schema wants every key of a list-map required or with a default: those defaults stay.
    3. Quantities and int-or-strings get the form that structural schemas have for them.
    """
    derived = _inlined({"$ref": _PREFIX + TEMPLATE}, document["components"]["schemas"], frozenset())
    return {**derived, "required": ["spec"]}


def pod_template_schema() -> Schema:
    """Return a new copy of the derived schema."""
    schema: Schema = json.loads(files("gradsieve_operator.schema").joinpath(_DATA).read_text())
    return schema


def dumps(schema: Schema) -> str:
    """Return the text of the package data."""
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def _inlined(schema: Schema, definitions: dict[str, Schema], kept_defaults: frozenset[str]) -> Schema:
    reference = schema.get("allOf", [schema])[0]  # beside a default, a reference is wrapped
    name = reference.get("$ref", "").removeprefix(_PREFIX)
    if name in _SPECIAL:
        return _SPECIAL[name]
    if name:
        schema = definitions[name]
    result = {key: schema[key] for key in _KEPT if key in schema}
    if "properties" in schema:
        result["type"] = "object"
        defaults = kept_defaults - set(schema.get("required", ()))
        result["properties"] = {
            field: _with_default(_inlined(content, definitions, frozenset()), field, content, defaults)
            for field, content in schema["properties"].items()
            if field not in _NEVER_IN_TEMPLATES.get(name, ())
        }
    if "items" in schema:
        keys = frozenset(schema.get("x-kubernetes-list-map-keys", ()))
        result["items"] = _inlined(schema["items"], definitions, keys)
    if "additionalProperties" in schema:
        result["additionalProperties"] = _inlined(schema["additionalProperties"], definitions, frozenset())
    return result


def _with_default(derived: Schema, field: str, source: Schema, kept: frozenset[str]) -> Schema:
    return {**derived, "default": source["default"]} if field in kept and "default" in source else derived


if __name__ == "__main__":
    openapi = json.loads(Path(sys.argv[1]).read_text())
    Path(str(files("gradsieve_operator.schema").joinpath(_DATA))).write_text(dumps(derive(openapi)))
