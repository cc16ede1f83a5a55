"""kmock's API server with what the operator needs beyond it: server-side apply, UIDs, label selectors.

The operator's client finds it through a kubeconfig, as it would find a real one.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp.web
import attrs
import kmock
import yaml

WRITES = {"POST", "PATCH", "PUT", "DELETE"}
Interception = Callable[[kmock.Request], None]


@attrs.define(kw_only=True)
class ApiServer(kmock.KubernetesEmulator):
    """An API server in memory.

    Attributes:
        before: called with every write before it is done; raise a `kmock.KubernetesError` to refuse it.
        after: called with every write after it was done; raising loses the answer.
        writes: method and path of all writes.
        behind: by how many seconds its clock is behind ours.
    """

    before: Interception = attrs.field(default=lambda _: None)
    after: Interception = attrs.field(default=lambda _: None)
    writes: list[str] = attrs.field(factory=list)
    behind: float = 0.0
    _numbers: Any = attrs.field(factory=lambda: itertools.count(1))

    async def _handle(self, request: kmock.Request) -> Any:
        method = request.method.value.upper()
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
        self.writes.append(f"{method} {request.url.path}")
        self.before(request)
        key = (request.resource, request.namespace, request.name or body.get("metadata", {}).get("name"))
        found = self.objects[key] if key in self.objects and not self.objects[key].deleted else None
        applies = "apply-patch" in request.headers.get("Content-Type", "")
        kind = "MODIFIED"
        if found is None and (method == "POST" or applies):
            self._stamp(body["metadata"])
            self.objects[key] = body
            found, kind = self.objects[key], "ADDED"
        elif found is None:
            raise kmock.KubernetesObjectNotFoundError
        elif method == "POST":
            raise kmock.KubernetesError(status=409, reason="AlreadyExists", message="it exists")
        elif method == "DELETE":
            if body["preconditions"]["uid"] != found["metadata"]["uid"]:
                raise kmock.KubernetesError(status=409, reason="Conflict", message="another uid")
            kind = "DELETED"
        elif method == "PUT":
            if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
                raise kmock.KubernetesError(status=409, reason="Conflict", message="it has changed")
            self.objects[key] = {**body, "metadata": {**body["metadata"], "resourceVersion": self.version()}}
            found = self.objects[key]
        else:
            if body.get("metadata", {}).get("resourceVersion") not in (
                None,
                "",
                found["metadata"].get("resourceVersion"),
            ):
                raise kmock.KubernetesError(status=409, reason="Conflict", message="it has changed")
            found.patch(body)
            found.patch({"metadata": {"resourceVersion": self.version()}})
        raw = found.raw
        if kind == "DELETED":
            found.delete()
        await self._buses[request.resource].put({"type": kind, "object": raw})
        self.after(request)
        return raw

    async def _serve_list(self, request: kmock.Request) -> Any:
        found = await super()._serve_list(request)
        wanted = dict(
            part.split("=", 1) for part in request.params.get("labelSelector", "").split(",") if "=" in part
        )
        items = [
            item for item in found["items"] if wanted.items() <= item["metadata"].get("labels", {}).items()
        ]
        return {**found, "metadata": {"resourceVersion": "1"}, "items": items}

    def _stamp(self, metadata: dict[str, Any]) -> None:
        number = self.version()
        metadata["uid"] = f"uid-{number}"
        metadata["resourceVersion"] = number
        now = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=self.behind)
        metadata["creationTimestamp"] = now.isoformat(timespec="seconds").replace("+00:00", "Z")

    def version(self) -> str:
        """Return a resourceVersion that nothing has yet."""
        return str(next(self._numbers))

    def all(self, resource: str, namespace: str | None = "research") -> dict[str, Any]:
        """Return name -> object of one kind."""
        return {
            name: found.raw
            for (kind, where, name), found in self.objects.items()
            if kind == kmock.resource(resource) and where == namespace and not found.deleted
        }


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
