"""What a CustomResourceDefinition takes away from those who use an earlier one of the same version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_LOWER = ("minimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "maxLength", "maxItems", "maxProperties")
# A change of these refuses what was accepted, or has the API server merge, keep or fill in something else.
_FIXED = (
    "type", "format", "pattern", "anyOf", "default", "nullable", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys", "x-kubernetes-map-type", "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
)  # fmt: skip
_COMPARED = {
    "description", "properties", "required", "items", "additionalProperties", "enum",
    "x-kubernetes-validations", *_LOWER, *_UPPER, *_FIXED,
}  # fmt: skip


def narrowed(old: Schema, new: Schema, same: Mapping[str, str] | None = None) -> list[str]:
    """Return what a definition takes away from those who use an earlier one, as ``path: what``.

    Args:
        old: the earlier definition.
        new: the later one.
        same: rules of the later one that were written otherwise, by what they were.

    Raises:
        ValueError: a schema has a keyword that is not compared here.
    """
    changes = [key for key in ("group", "scope", "names") if old["spec"][key] != new["spec"][key]]
    versions = {each["name"]: each for each in new["spec"]["versions"]}
    for was in old["spec"]["versions"]:
        now = versions.get(was["name"])
        if now is None or any(was.get(key) != now.get(key) for key in ("served", "storage", "subresources")):
            changes.append(f"{was['name']}: removed, or not served or stored as before")
        else:
            schemas = (each["schema"]["openAPIV3Schema"] for each in (was, now))
            changes += _schema(*schemas, was["name"], same or {})
    return changes


def _schema(old: Schema, new: Schema, path: str, same: Mapping[str, str]) -> Iterator[str]:
    if unknown := {*old, *new} - _COMPARED:
        raise ValueError(f"{path}: {sorted(unknown)} are not compared")
    for key in _FIXED:
        if old.get(key) != new.get(key):
            yield f"{path}: {key} is {new.get(key)!r} instead of {old.get(key)!r}"
    yield from _bounds(old, new, path)
    if "enum" in new and not set(old.get("enum", [object()])) <= set(new["enum"]):
        yield f"{path}: enum is narrower"
    for field in sorted({*new.get("required", ())} - {*old.get("required", ())}):
        yield f"{path}.{field}: is required now"
    rules = [{each["rule"] for each in one.get("x-kubernetes-validations", ())} for one in (old, new)]
    for rule in sorted(rules[1] - rules[0] - {same[rule] for rule in rules[0] & set(same)}):
        yield f"{path}: a rule is new: {rule}"
    yield from _inner(old, new, path, same)


def _bounds(old: Schema, new: Schema, path: str) -> Iterator[str]:
    tighter: dict[str, Callable[[float, float], bool]] = {
        **dict.fromkeys(_LOWER, lambda now, was: now > was),
        **dict.fromkeys(_UPPER, lambda now, was: now < was),
    }
    for key, is_tighter in tighter.items():
        if key in new and (key not in old or is_tighter(new[key], old[key])):
            yield f"{path}: {key} is {new[key]} instead of {old.get(key)}"


def _inner(old: Schema, new: Schema, path: str, same: Mapping[str, str]) -> Iterator[str]:
    for name, field in old.get("properties", {}).items():
        if name not in new.get("properties", {}):
            yield f"{path}.{name}: was removed"
        else:
            yield from _schema(field, new["properties"][name], f"{path}.{name}", same)
    for key in ("items", "additionalProperties"):
        if key in old and key not in new:
            yield f"{path}: {key} was removed"
        elif key in old:
            yield from _schema(old[key], new[key], f"{path}[]", same)
