"""Small pieces that structural schemas are put together from."""

from __future__ import annotations

import re
from typing import Any

Schema = dict[str, Any]


def text(description: str, *, longest: int, pattern: re.Pattern[str] | None = None, **more: Any) -> Schema:
    """Return the schema of a string."""
    form = {} if pattern is None else {"pattern": f"^{pattern.pattern}$", "minLength": 1}
    return {"type": "string", "description": description, "maxLength": longest, **form, **more}


def word(description: str, words: tuple[str, ...], **more: Any) -> Schema:
    """Return the schema of one of ``words``."""
    return {"type": "string", "description": description, "enum": list(words), **more}


def flag(description: str, **more: Any) -> Schema:
    """Return the schema of a truth value."""
    return {"type": "boolean", "description": description, **more}


def number(description: str, least: int, most: int, **more: Any) -> Schema:
    """Return the schema of a whole number."""
    kind = "int32" if most < 2**31 else "int64"
    bounds = {"minimum": least, "maximum": most}
    return {"type": "integer", "format": kind, "description": description, **bounds, **more}


def time(description: str) -> Schema:
    """Return the schema of a point in time."""
    return {"type": "string", "format": "date-time", "description": description}


def items(description: str, item: Schema, *, most: int, kind: str = "atomic", **more: Any) -> Schema:
    """Return the schema of a list; ``kind`` is ``"atomic"``, ``"set"`` or ``"map"``."""
    shape = {"type": "array", "items": item, "maxItems": most, "x-kubernetes-list-type": kind}
    return {**shape, "description": description, **more}


def fields(description: str, properties: dict[str, Schema], **more: Any) -> Schema:
    """Return the schema of an object."""
    return {"type": "object", "description": description, "properties": properties, **more}


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """Return CEL rules from pairs of a condition that must hold and the message if it does not."""
    return {
        "x-kubernetes-validations": [{"rule": condition, "message": message} for condition, message in pairs]
    }


def listed(words: tuple[str, ...]) -> str:
    """Return ``words`` as a list in CEL."""
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


def definition(
    kind: str, plural: str, short: str, description: str, version: Schema, *, group: str, name: str
) -> Schema:
    """Return a CustomResourceDefinition with one version, which is served and stored."""
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": [short],
        "categories": ["gradsieve"],
    }
    schema = version.pop("schema")
    schema = {
        "type": "object",
        "description": description,
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            **schema.pop("properties"),
        },
        **schema,
    }
    served = {"name": name, "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": names,
            "scope": "Namespaced",
            "versions": [{**served, **version, "schema": {"openAPIV3Schema": schema}}],
        },
    }
