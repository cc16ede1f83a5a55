"""What the operator remembers of a job from one look to the next."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from gradsieve_operator.cluster.heard import Heard
from gradsieve_operator.cluster.last_seen import LastSeen
from gradsieve_operator.cluster.tls import JobContext
from gradsieve_operator.decide import Progress
from gradsieve_operator.resources import Contents, Held, Manifest


@dataclass(frozen=True)
class Unwritten:
    """Progress that nothing that was done depends on, and that is to be written in a moment.

    Attributes:
        since: when the first of it was held back, of the monotonic clock.
        record: ``status.record`` as it is in the cluster; what others write there counts instead.
        progress: as it is by now.
        patient: whether it waits for a look that is made anyway.
    """

    since: float
    record: object
    progress: Progress
    patient: bool = False


@dataclass
class Memory:
    """What need not be asked for each time; losing it costs calls and nothing else.

    Attributes:
        version: the job's ``resourceVersion`` when it was last looked at, or written by us.
        written_at: when its status was last written, of the monotonic clock.
        unwritten: what is to be written; None while all is.
        outdated: the ``resourceVersion`` for which the server refused a write, because there is a newer one.
        conflicts: how often in a row that has happened.
        unsure: whether something was written to the job or its pods, and nobody knows if that was done.
        not_before: until then it is left alone, whatever is heard of it, of the monotonic clock.
        secrets_read_at: when all Secrets were last read or written, of the monotonic clock; None to have
            them read.
        secrets: name -> Secret, its metadata; of the operator's own also what it holds.
        contents: name -> version of a Secret, and what is in it; None for a damaged one.
        held: what they hold together.
        context: of TLS, made from them.
        refused: why the API server refused a child in the last round.
        withheld: why the API server refused a child when the operator last tried to make one; empty when it
            did not.
        objection: why the coordinator refused a roster or a plan in the last round.
        failing_since: when it began to fail to make children, seconds since the epoch; None when it does not.
        troubled_since: when the operator began to fail to work on the job, of the monotonic clock; None when
            it does not.
        last_seen: its pods, those that are gone among them.
        heard: what its coordinator last said; None once it was told something.
    """

    version: str = ""
    written_at: float = -math.inf
    unwritten: Unwritten | None = None
    outdated: str = ""
    conflicts: int = 0
    unsure: bool = False
    not_before: float = 0.0
    secrets_read_at: float | None = None
    secrets: dict[str, Manifest] = field(default_factory=dict)
    contents: dict[str, tuple[str, Contents | None]] = field(default_factory=dict)
    held: Held = field(default_factory=Held)
    context: JobContext | None = None
    refused: str = ""
    withheld: str = ""
    objection: str = ""
    failing_since: float | None = None
    troubled_since: float | None = None
    last_seen: LastSeen = field(default_factory=LastSeen)
    heard: Heard | None = None

    @property
    def secrets_age(self) -> float:
        """How many seconds ago the Secrets were read or written; infinity if they never were."""
        at = self.secrets_read_at
        return math.inf if at is None else time.monotonic() - at
