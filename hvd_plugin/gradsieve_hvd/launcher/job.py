"""What is to be run, and what came of it: the two records that launcher and supervisor exchange."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from gradsieve.errors import ConfigurationError
from gradsieve_hvd.launcher.link import Link
from gradsieve_hvd.launcher.rate import format_rate
from gradsieve_hvd.launcher.stragglers import Straggler

TIMED_OUT = 124
"""Exit status of a job that ``timeout`` ended, as that of timeout(1)."""


@dataclass(frozen=True)
class Job:
    """A command to run on several ranks of this machine.

    Attributes:
        command: program and arguments, the same on every rank.
        ranks: how many.
        link: emulated network, or None for the machine's own loopback and shared memory.
        gloo: let Horovod communicate through Gloo instead of MPI; no ``mpirun`` then.
        timeout: seconds after which every rank's stack is shown and the job is ended, or None.
        tag_output: put the rank in front of each of its lines.
        slow: ranks that compute slower. If there are any, every rank is held to a quota of processor time.

    Raises:
        ConfigurationError: no command, no rank, a time-out that is not positive, or a rank that is slow, or
            has a link of its own rate, and is not one of them.
    """

    command: tuple[str, ...]
    ranks: int
    link: Link | None = None
    gloo: bool = False
    timeout: float | None = None
    tag_output: bool = False
    slow: tuple[Straggler, ...] = ()

    def __post_init__(self) -> None:
        if not self.command:
            raise ConfigurationError(
                "no command to run: write it behind --, as in `gradsieve run -np 4 -- python train.py`"
            )
        if self.ranks < 1:
            raise ConfigurationError(f"{self.ranks} ranks cannot be started: at least 1 is needed")
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigurationError(f"a time-out of {self.timeout} seconds is not positive")
        for each in self.slow:
            if isinstance(each.who, int) and each.who >= self.ranks:
                raise ConfigurationError(
                    f"--slow {each}: there is no rank {each.who}; ranks are 0 to {self.ranks - 1}"
                )

        for rank, rate in () if self.link is None else self.link.others:
            if rank >= self.ranks:
                raise ConfigurationError(
                    f"--link {rank}:{format_rate(rate)}: there is no rank {rank}; ranks are 0 to "
                    f"{self.ranks - 1}"
                )

    def to_json(self) -> str:
        """One line that :meth:`from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The job that :meth:`to_json` wrote."""
        fields = json.loads(text)
        linked = fields.pop("link")
        link = linked and Link(linked["rate"], tuple((rank, rate) for rank, rate in linked["others"]))
        slow = tuple(Straggler(**each) for each in fields.pop("slow"))
        return cls(command=tuple(fields.pop("command")), link=link, slow=slow, **fields)


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        status: exit status for the shell: the failing rank's, 128 + signal, or 124 after a time-out.
        failure: one line saying which rank failed and how; empty if none did.
        seconds: wall time from the start of the ranks to the end of the last one.
        bytes_sent: bytes that each rank's interface sent, headers and retransmissions included, in rank
            order; empty without an emulated link.
        error: why the job could not be started; empty if it was.
    """

    status: int
    failure: str = ""
    seconds: float = 0.0
    bytes_sent: list[int] = field(default_factory=list)
    error: str = ""

    def to_json(self) -> str:
        """One line that :meth:`from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """The outcome that :meth:`to_json` wrote."""
        return cls(**json.loads(text))
