"""What people and programs with rights in a namespace can do to a job's children and to its status."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

Objects = dict[tuple[str, str], dict[str, Any]]
"""Resource and name -> object of the job's namespace."""

Harm = Callable[[Objects], None]

_CHILDREN = (
    "v1/secrets",
    "v1/services",
    "v1/configmaps",
    "v1/serviceaccounts",
    "networking.k8s.io/v1/networkpolicies",
)
_WORDS = st.sampled_from(["", "abc", "worker", "coordinator", "0", "-1", "1e9", str(10**20), "digits", "Ω"])
_TIMES = st.sampled_from(
    [
        None,
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "2026-01-01T00:00:00Z",
        "2026-01-01t00:00:00.123456789+99:99",
        "9999-12-31T23:59:59Z",
    ]
)
_KEYS = st.sampled_from(
    ["job", "role", "group", "index", "generation", "attempt", "authority", "origin", "trust"]
)
_MARKS = st.dictionaries(_KEYS.map("gradsieve.io/{}".format), _WORDS, max_size=4)
_STATES = st.one_of(
    st.just({}),
    st.builds(lambda at: {"running": {"startedAt": at}}, _TIMES),
    st.builds(lambda why: {"waiting": {"reason": why, "message": why}}, _WORDS),
    st.builds(
        lambda code, at: {"terminated": {"exitCode": code, "startedAt": at, "finishedAt": at}},
        st.sampled_from([0, 1, 137, -1, 2**31 - 1]),
        _TIMES,
    ),
)
_CONTAINERS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["train", "other"]), "state": _STATES}), max_size=3
)
_CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["Ready", "PodScheduled", "DisruptionTarget", "Other"]),
            "status": st.sampled_from(["True", "False", "Unknown"]),
        },
        optional={"reason": _WORDS, "message": _WORDS, "lastTransitionTime": _TIMES},
    ),
    max_size=4,
)
_POD_STATUS = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
        "reason": _WORDS,
        "message": _WORDS,
        "podIP": st.sampled_from(["127.0.0.1", "::1", "no address", ""]),
        "conditions": _CONDITIONS,
        "containerStatuses": _CONTAINERS,
        "initContainerStatuses": _CONTAINERS,
    },
)
_OWNERS = st.sampled_from(
    [[], [{"apiVersion": "v1", "kind": "Other", "name": "mine", "uid": "u", "controller": True}]]
)
_DATA = st.sampled_from([None, "", "AAAA", base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()])
_ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def values(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return what the API server takes for a field with this schema."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "integer":
        low, high = schema.get("minimum", -(2**31)), schema.get("maximum", 2**31 - 1)
        return st.sampled_from([low, high]) | st.integers(int(low), int(high))
    if kind == "boolean":
        return st.booleans()
    if kind == "array":
        return st.lists(values(schema["items"]), max_size=2)
    if kind == "object":
        fields = {name: values(inner) for name, inner in schema.get("properties", {}).items()}
        needed = {name: fields.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(needed, optional=fields)
    if schema.get("format") == "date-time":
        return _TIMES.filter(bool)
    pattern = schema.get("pattern")
    return st.from_regex(pattern, fullmatch=True) if pattern else _WORDS


def _named(resource: str) -> Callable[[Objects], list[tuple[str, str]]]:
    return lambda objects: sorted(key for key in objects if key[0] == resource)


def _each(
    resource: str, strategy: st.SearchStrategy[Any], do: Callable[..., None]
) -> st.SearchStrategy[Harm]:
    """Return harm to one object of a resource, by what ``strategy`` draws."""

    def build(place: int, drawn: Any) -> Harm:
        def harm(objects: Objects) -> None:
            keys = _named(resource)(objects)
            if keys:
                do(objects, keys[place % len(keys)], copy.deepcopy(drawn))

        return harm

    return st.builds(build, st.integers(0, 7), strategy)


def _mark(part: str) -> Callable[..., None]:
    def do(objects: Objects, key: tuple[str, str], marks: dict[str, str]) -> None:
        # A pod without the job's label has left the job: that is another test's.
        kept = {"gradsieve.io/job": "digits"} if part == "labels" and key[0] == "v1/pods" else {}
        objects[key]["metadata"][part] = {**marks, **kept}

    return do


def _set(*where: str) -> Callable[..., None]:
    def do(objects: Objects, key: tuple[str, str], value: Any) -> None:
        place = objects[key]
        for name in where[:-1]:
            place = place.setdefault(name, {})
        place[where[-1]] = value

    return do


def _delete(objects: Objects, key: tuple[str, str], _: Any) -> None:
    del objects[key]


def _copy(objects: Objects, key: tuple[str, str], generation: int) -> None:
    name = f"{key[1].rpartition('-')[0]}-{generation}"
    pod = copy.deepcopy(objects[key])
    pod["metadata"].update(name=name, uid=f"uid-of-{name}")
    objects.setdefault(("v1/pods", name), pod)


def _data(objects: Objects, key: tuple[str, str], drawn: tuple[int, Any]) -> None:
    data = objects[key].get("data") or {"x": ""}
    names = sorted(data)
    data[names[drawn[0] % len(names)]] = drawn[1]
    objects[key]["data"] = {name: value for name, value in data.items() if value is not None}


def _record(objects: Objects, key: tuple[str, str], drawn: tuple[int, Any]) -> None:
    status = objects[key].setdefault("status", {})
    found = json.loads(status.get("record") or "{}")
    names = sorted({*found, "generation", "roster", "started", "finished", "retryAt", "absent", "sizes"})
    found[names[drawn[0] % len(names)]] = drawn[1]
    status["record"] = json.dumps(found)


def harms(job: str, status: Mapping[str, Any]) -> st.SearchStrategy[Harm]:
    """Return what may be done.

    Args:
        job: resource of the jobs.
        status: schema of their status.
    """
    fields = [_each(job, values(field), _set("status", name)) for name, field in status["properties"].items()]
    inside = _each(job, st.tuples(st.integers(0, 40), _ODD | _TIMES | _WORDS), _record)
    text = _each(job, _ODD.map(lambda odd: json.dumps(odd)[:100]), _set("status", "record"))
    return st.one_of(*_to_pods(), *_to_children()) | st.one_of(*fields) | inside | text


def _to_pods() -> Iterator[st.SearchStrategy[Harm]]:
    pods = "v1/pods"
    yield _each(pods, _MARKS, _mark("labels"))
    yield _each(pods, _MARKS, _mark("annotations"))
    yield _each(pods, _POD_STATUS, _set("status"))
    yield _each(pods, _TIMES.filter(bool), _set("metadata", "creationTimestamp"))
    yield _each(pods, _OWNERS, _set("metadata", "ownerReferences"))
    yield _each(pods, st.none(), _delete)
    yield _each(pods, st.sampled_from([0, 2, 9, 10**15, 10**20]), _copy)


def _to_children() -> Iterator[st.SearchStrategy[Harm]]:
    for resource in _CHILDREN:
        yield _each(resource, _MARKS, _mark("labels"))
        yield _each(resource, _MARKS, _mark("annotations"))
        yield _each(resource, _OWNERS, _set("metadata", "ownerReferences"))
        yield _each(resource, st.none(), _delete)
        yield _each(resource, st.tuples(st.integers(0, 9), _DATA), _data)
