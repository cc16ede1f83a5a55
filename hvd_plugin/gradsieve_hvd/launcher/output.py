"""The output of ``mpirun``: rank tags shortened, its banners about failed ranks taken out and understood."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_RULE = b"-" * 74
_TAG = re.compile(rb"^\[\d+,(\d+)\]<std(?:out|err)>: ?")
_OPENINGS = (b"prterun detected", b"prterun noticed", b"prterun has exited", b"MPI_ABORT was invoked")
# Both sides of a fork set the group; the second one to do so may come too late and says so.
_NOISE = b"plm:ssh: Warning: setpgid("
_ABORTED = re.compile(rb"MPI_ABORT was invoked on rank (\d+).*?Errorcode: (-?\d+)", re.DOTALL)
_EXITED = re.compile(rb"Process name: \[\S+@\d+,(\d+)\]\s+Exit code:\s+(\d+)")
_SIGNALLED = re.compile(rb"process rank (\d+) .*?exited\s+on\s+signal\s+(\d+)(?:\s+\(([^)]*)\))?", re.DOTALL)


def describe(banner: bytes) -> str:
    """Which rank ended the job and how, if the banner says so; else an empty string."""
    if match := _ABORTED.search(banner):
        return f"rank {int(match[1])} called MPI_Abort with status {int(match[2])}"
    if match := _EXITED.search(banner):
        return f"rank {int(match[1])} exited with status {int(match[2])}"
    if match := _SIGNALLED.search(banner):
        name = f" ({match[3].decode()})" if match[3] else ""
        return f"rank {int(match[1])} was ended by signal {int(match[2])}{name}"
    return ""


@dataclass
class OutputFilter:
    """One stream of ``mpirun`` as the user is to see it.

    Banners are framed by rules of 74 dashes; those about a failed rank are taken out, all others go through.
    What cannot be the beginning of a banner goes through at once, also half a line: progress bars stay alive.

    Attributes:
        tagged: whether lines carry ``mpirun``'s tag ``[1,2]<stdout>:``, which becomes ``[2]``.
        prefix: goes in front of every line; for streams that belong to one rank.
        failure: which rank ended the job and how; empty until a banner has said so.
    """

    tagged: bool = False
    prefix: bytes = b""
    failure: str = ""
    _banner: list[bytes] = field(default_factory=list)
    _rest: bytes = b""

    def feed(self, data: bytes) -> bytes:
        """Add what was read; returns what is to be shown now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        shown = b"".join(self._line(line + b"\n") for line in lines)
        if self.tagged or self.prefix or self._banner or _RULE.startswith(self._rest[: len(_RULE)]):
            return shown
        rest, self._rest = self._rest, b""
        return shown + rest

    def close(self) -> bytes:
        """What was kept back when the stream ended."""
        text = b"".join(map(self._show, [*self._banner, self._rest] if self._rest else self._banner))
        self._banner, self._rest = [], b""
        return text

    def _show(self, line: bytes) -> bytes:
        return self.prefix + (_TAG.sub(rb"[\1] ", line) if self.tagged else line)

    def _text(self, line: bytes) -> bytes:
        return _TAG.sub(b"", line).strip() if self.tagged else line.strip()

    def _line(self, line: bytes) -> bytes:
        if _NOISE in line:
            return b""
        if not self._banner and self._text(line) != _RULE:
            return self._show(line)
        self._banner.append(line)
        if len(self._banner) == 2 and not self._text(line).startswith(_OPENINGS):
            return self.close()
        if len(self._banner) > 2 and self._text(line) == _RULE:
            self._understand()
        return b""

    def _understand(self) -> None:
        said = describe(b"\n".join(map(self._text, self._banner)))
        self._banner = []
        # The abort's own banner knows the status, but may come after the one that says only that it happened.
        if said and (not self.failure or "MPI_Abort" in said):
            self.failure = said
