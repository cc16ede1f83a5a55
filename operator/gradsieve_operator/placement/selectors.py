"""Label selectors as the API server and the scheduler read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches; an empty one matches everything."""
    named: Mapping[str, str] = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in named.items()) and all(
        matches(labels, expression) for expression in selector.get("matchExpressions") or ()
    )


def keys(selector: Mapping[str, Any]) -> frozenset[str]:
    """Return the labels that a selector looks at."""
    expressions = (expression["key"] for expression in selector.get("matchExpressions") or ())
    return frozenset((*(selector.get("matchLabels") or ()), *expressions))


def matches(labels: Mapping[str, str], expression: Mapping[str, Any]) -> bool:
    """Return whether labels meet one requirement, of pods or of nodes; an unknown operator is never met."""
    value = labels.get(expression["key"])
    values = expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _is_whole(value) and _is_whole(values[0]) and int(str(value)) > int(values[0])
        case "Lt":
            return _is_whole(value) and _is_whole(values[0]) and int(str(value)) < int(values[0])
        case _:
            return False


def _is_whole(text: str | None) -> bool:
    return text is not None and text.lstrip("-").isdecimal()
