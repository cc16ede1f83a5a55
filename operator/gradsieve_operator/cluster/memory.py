"""What the operator remembers of a job from one look to the next."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gradsieve_operator.cluster.last_seen import LastSeen
from gradsieve_operator.cluster.tls import JobContext
from gradsieve_operator.resources import Contents, Held, Manifest

_TRUST_SECONDS = 60.0
"""For how long a running job's Secrets, and its other children, are taken to be as they were."""


@dataclass
class Memory:
    """What need not be asked for each time; losing it costs calls and nothing else.

    Attributes:
        version: the job's ``resourceVersion`` when it was last looked at, or written by us.
        unsure: whether something was written to the job or its pods, and nobody knows if that was done.
        not_before: until then it is left alone, whatever is heard of it, of the monotonic clock.
        until: when the following is forgotten, of the monotonic clock.
        secrets: name -> Secret.
        contents: name -> version of a Secret, and what is in it; None for a damaged one.
        held: what they hold together.
        context: of TLS, made from them.
        children: kind and name of what was applied.
        refused: why the API server refused a child in the last round.
        withheld: why the API server refused a child when the operator last tried to make one; empty when it
            did not.
        objection: why the coordinator refused a roster or a plan in the last round.
        failing_since: when it began to fail to make children, seconds since the epoch; None when it does not.
        troubled_since: when the operator began to fail to work on the job, of the monotonic clock; None when
            it does not.
        last_seen: its pods, those that are gone among them.
    """

    version: str = ""
    unsure: bool = False
    not_before: float = 0.0
    until: float = 0.0
    secrets: dict[str, Manifest] = field(default_factory=dict)
    contents: dict[str, tuple[str, Contents | None]] = field(default_factory=dict)
    held: Held = field(default_factory=Held)
    context: JobContext | None = None
    children: set[tuple[str, str]] = field(default_factory=set)
    refused: str = ""
    withheld: str = ""
    objection: str = ""
    failing_since: float | None = None
    troubled_since: float | None = None
    last_seen: LastSeen = field(default_factory=LastSeen)

    def expire(self) -> None:
        """Forget what is too old."""
        if time.monotonic() >= self.until:
            self.secrets, self.context, self.children = {}, None, set()
            self.until = time.monotonic() + _TRUST_SECONDS
