"""The operator's requests, counted in the API server's audit log. Pure, but for reading the file."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradsieve_operator import contract

_JOB = re.compile(r"(?:run|wait|life|after)-\d{4}")
_GRANTED = "leases"


def rules(account: str) -> list[dict[str, Any]]:
    """Return the audit policy's rules: of ``account`` everything, with what it writes to jobs' status."""
    status = {"group": contract.GROUP, "resources": [f"{contract.JOB_PLURAL}/status"]}
    return [
        {"level": "Request", "users": [account], "resources": [status]},
        {"level": "Metadata", "users": [account]},
        {"level": "None"},
    ]


@dataclass(frozen=True)
class Request:
    """One request of the operator.

    Attributes:
        at: when the server received it, seconds since the epoch.
        job: name of the job that it is about; empty for none.
        verb: in Kubernetes' words.
        resource: with its subresource.
        telemetry: whether it writes nothing but telemetry.
    """

    at: float
    job: str
    verb: str
    resource: str
    telemetry: bool

    @classmethod
    def parse(cls, event: dict[str, Any]) -> Request:
        """Read an audit event."""
        about = event.get("objectRef") or {}
        # Lists of a job's objects name it in their selector.
        found = _JOB.search(about.get("name") or "") or _JOB.search(event["requestURI"])
        resource = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
        changed = set((event.get("requestObject") or {}).get("status") or {})
        return cls(
            at=dt.datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
            job=found[0] if found else "",
            verb=event["verb"],
            resource=resource,
            telemetry=changed == {"telemetry"},
        )

    @property
    def kind(self) -> str:
        """Verb and resource."""
        return f"{self.verb} {self.resource}"


def read(log: Path) -> Iterator[Request]:
    """Yield the requests in an audit log."""
    with log.open() as lines:
        for line in lines:
            # The last one may be written right now.
            if line.endswith("\n"):
                yield Request.parse(json.loads(line))


def of_lives(requests: Iterable[Request]) -> dict[str, Counter[str]]:
    """Return, by job, how many requests of which kind its life took; telemetry and deletions apart."""
    found: dict[str, Counter[str]] = {}
    for request in requests:
        if request.job.startswith("life-") and not request.telemetry and request.verb != "delete":
            found.setdefault(request.job, Counter())[request.kind] += 1
    return found


def steady(requests: Iterable[Request], began: float, ended: float) -> Counter[str]:
    """Return how many requests of which kind came in a span; telemetry and the Lease's renewals apart."""
    return Counter(
        request.kind
        for request in requests
        if began <= request.at < ended and not request.telemetry and request.resource != _GRANTED
    )


def first_child(requests: Iterable[Request], job: str) -> float | None:
    """Return when the first child of a job was made; None if none was."""
    return next((each.at for each in requests if each.job == job and _makes_child(each)), None)


def _makes_child(request: Request) -> bool:
    # Children are made by server-side apply.
    return request.verb in ("create", "patch") and not request.resource.startswith(
        (contract.JOB_PLURAL, "events")
    )
