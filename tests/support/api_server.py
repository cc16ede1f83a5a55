"""kmock's API server with what the operator needs beyond it: server-side apply, UIDs, versions, selectors.

What tests do to its objects themselves gets a version and becomes an event, as if somebody had written it.
The operator's client finds it through a kubeconfig, as it would find a real one.
"""

from __future__ import annotations

import asyncio
import bisect
import copy
import datetime as dt
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp.web
import attrs
import kmock
import yaml

WRITES = {"POST", "PATCH", "PUT", "DELETE"}
Interception = Callable[[kmock.Request], None]
_LOOK_SECONDS = 0.01


@attrs.define(kw_only=True)
class ApiServer(kmock.KubernetesEmulator):
    """An API server in memory.

    Attributes:
        before: called with every write before it is done; raise a `kmock.KubernetesError` to refuse it.
        after: called with every write after it was done; raising loses the answer.
        writes: method and path of all writes, with the name of what is created.
        behind: by how many seconds its clock is behind ours.
    """

    before: Interception = attrs.field(default=lambda _: None)
    after: Interception = attrs.field(default=lambda _: None)
    writes: list[str] = attrs.field(factory=list)
    behind: float = 0.0
    _last: int = 0
    _noticed_at: float = 0.0
    _shown: dict[Any, dict[str, Any]] = attrs.field(factory=dict)
    _events: list[tuple[int, Any, dict[str, Any]]] = attrs.field(factory=list)

    async def _handle(self, request: kmock.Request) -> Any:
        method = request.method.value.upper()
        self._notice()
        if method not in WRITES or request.resource is None:
            return await super()._handle(request)
        try:
            written = await self._write(method, request)
            return aiohttp.web.json_response(written, status=201 if method == "POST" else 200)
        except kmock.KubernetesError as error:
            return await self._render_error(error)

    async def _write(self, method: str, request: kmock.Request) -> dict[str, Any]:
        """Do a write as the real server does, and tell the watches."""
        body = json.loads(request.body) if request.body else {}
        request = attrs.evolve(request, data=body)
        self.writes.append(f"{method} {target(request)}")
        self.before(request)
        key = (request.resource, request.namespace, request.name or body.get("metadata", {}).get("name"))
        found = self.objects[key] if key in self.objects and not self.objects[key].deleted else None
        applies = "apply-patch" in request.headers.get("Content-Type", "")
        uid = body.get("metadata", {}).get("uid")
        if method == "PATCH" and uid and uid != (found["metadata"].get("uid") if found else ""):
            raise kmock.KubernetesError(status=409, reason="Conflict", message="another uid")
        if found is None and (method == "POST" or applies):
            self._stamp(body["metadata"])
            self.objects[key] = body
            found = self.objects[key]
        elif found is None:
            raise kmock.KubernetesObjectNotFoundError
        elif method == "POST":
            raise kmock.KubernetesError(status=409, reason="AlreadyExists", message="it exists")
        elif method == "DELETE":
            if body["preconditions"]["uid"] != found["metadata"]["uid"]:
                raise kmock.KubernetesError(status=409, reason="Conflict", message="another uid")
            raw = found.raw
            found.delete()
            self._notice()
            self.after(request)
            return raw
        elif method == "PUT":
            if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
                raise kmock.KubernetesError(status=409, reason="Conflict", message="it has changed")
            self.objects[key] = body
            found = self.objects[key]
        else:
            if body.get("metadata", {}).get("resourceVersion") not in (
                None,
                "",
                found["metadata"].get("resourceVersion"),
            ):
                raise kmock.KubernetesError(status=409, reason="Conflict", message="it has changed")
            found.patch(body)
        self._notice()
        raw = found.raw
        self.after(request)
        return raw

    async def _serve_list(self, request: kmock.Request) -> Any:
        found = await super()._serve_list(request)
        items = [item for item in found["items"] if _selected(request, item)]
        return {**found, "metadata": {"resourceVersion": str(self._last)}, "items": items}

    async def _serve_watch(self, request: kmock.Request) -> AsyncIterator[Any]:
        """Yield what has changed since the version that is asked for, and what changes."""
        yield b""
        seen = int(request.params.get("resourceVersion") or 0)
        while True:
            # All watches look at the same objects: once for all of them is enough.
            if asyncio.get_running_loop().time() - self._noticed_at >= _LOOK_SECONDS:
                self._notice()
            first = bisect.bisect_right(self._events, seen, key=lambda event: event[0])
            for version, (resource, namespace, _), event in self._events[first:]:
                here = resource == request.resource and request.namespace in (None, namespace)
                if here and _selected(request, event["object"]):
                    yield event
                seen = version
            await asyncio.sleep(_LOOK_SECONDS)

    def _notice(self) -> None:
        """Give what has changed its version and its event, whoever has changed it."""
        self._noticed_at = asyncio.get_running_loop().time()
        live = {key: found for key, found in self.objects.items() if not found.deleted}
        for key, found in live.items():
            shown = self._shown.get(key)
            if shown == found.raw:
                continue
            version = int(found.raw.get("metadata", {}).get("resourceVersion") or 0)
            about = {"name": key[2], **({"namespace": key[1]} if key[1] else {})}
            if version <= self._last:
                about["resourceVersion"] = self.version()
            found.patch({"metadata": about})
            self._last = max(self._last, version)
            raw = self._shown[key] = copy.deepcopy(found.raw)
            kind = "ADDED" if shown is None else "MODIFIED"
            self._events.append((self._last, key, {"type": kind, "object": raw}))
        for key in [key for key in self._shown if key not in live]:
            raw = self._shown.pop(key)
            about = {**raw["metadata"], "resourceVersion": self.version()}
            self._events.append((self._last, key, {"type": "DELETED", "object": {**raw, "metadata": about}}))

    def _stamp(self, metadata: dict[str, Any]) -> None:
        metadata["uid"] = f"uid-{self.version()}"
        now = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=self.behind)
        metadata["creationTimestamp"] = now.isoformat(timespec="seconds").replace("+00:00", "Z")

    def delete(self, resource: str, name: str, last: dict[str, Any]) -> None:
        """Delete an object of a namespace; the event shows it as it was in the end, changed by ``last``."""
        key = (kmock.resource(resource), "research", name)
        self.objects[key].patch(last)
        self._shown[key] = copy.deepcopy(self.objects[key].raw)
        self.objects[key].delete()

    def version(self) -> str:
        """Return a resourceVersion that nothing has yet."""
        self._last += 1
        return str(self._last)

    def all(self, resource: str, namespace: str | None = "research") -> dict[str, Any]:
        """Return name -> object of one kind."""
        return {
            name: found.raw
            for (kind, where, name), found in self.objects.items()
            if kind == kmock.resource(resource) and where == namespace and not found.deleted
        }


def target(request: kmock.Request) -> str:
    """Return the path of the object that a write is about, also of one that is being created."""
    made = request.method.value.upper() == "POST"
    name = request.data["metadata"].get("name", "") if made else ""
    return f"{request.url.path}/{name}" if name else str(request.url.path)


def _selected(request: kmock.Request, item: dict[str, Any]) -> bool:
    """Whether an object has the labels, and the name, that are asked for."""
    labels = item["metadata"].get("labels") or {}
    for part in filter(None, request.params.get("labelSelector", "").split(",")):
        name, _, value = part.partition("=")
        there = name.removeprefix("!") in labels
        if there == name.startswith("!") or ("=" in part and labels[name] != value):
            return False
    _, _, name = request.params.get("fieldSelector", "").partition("metadata.name=")
    return name in ("", item["metadata"].get("name"))


def kubeconfig(folder: Path, url: str) -> Path:
    """Write a kubeconfig for the server at ``url``."""
    named = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    context = {"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c"}
    where = folder / "kubeconfig"
    where.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **named, **context}))
    return where


def node(name: str, cpu: str = "4") -> dict[str, Any]:
    """Return a node that is ready."""
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "20"}
    status = {"allocatable": amounts, "conditions": [ready]}
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1"}, "status": status}
