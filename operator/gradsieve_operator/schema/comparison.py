"""Which of two CustomResourceDefinitions is newer: a version of a kind only ever gains optional fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def fields_beyond(installed: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields that ``installed`` has and ``ours`` does not, as ``version.path``, sorted.

    There are some where ``installed`` is of a later version than ``ours``: to apply ours would have the API
    server drop these fields from all objects.
    """
    return tuple(sorted(set(_fields(installed)) - set(_fields(ours))))


def _fields(definition: Mapping[str, Any]) -> Iterator[str]:
    for version in definition["spec"]["versions"]:
        yield from _paths(version["schema"]["openAPIV3Schema"], version["name"])


def _paths(schema: Mapping[str, Any], where: str) -> Iterator[str]:
    yield where
    for name, field in schema.get("properties", {}).items():
        yield from _paths(field, f"{where}.{name}")
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, Mapping):
            yield from _paths(inner, f"{where}[]")
