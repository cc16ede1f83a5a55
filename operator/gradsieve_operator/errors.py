"""Every error that the operator raises itself.

::

    OperatorError
    ├── SpecError      a field of a HorovodJob, a CompressionPolicy, a node or a pod cannot be read
    ├── RecordError    the operator's own record in a job's status cannot be what it has written
    └── ApiError       the API server answered with an error, or not at all

Each message says what happened, where (object, field) and what to do about it.
"""

from __future__ import annotations

_REFUSALS = frozenset({400, 403, 422})


class OperatorError(Exception):
    """Base of all errors raised by gradsieve_operator."""


class SpecError(OperatorError, ValueError):
    """A field holds what it must not; the object stays as it is until its author corrects it.

    Attributes:
        field: path of the field, as in ``spec.workerGroups[0].replicas``.
        problem: what is wrong with it and what is allowed.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class RecordError(OperatorError):
    """``status.record`` was changed by somebody else; what the job has come through is not known any more.

    Args:
        field: path of the field.
        problem: what is wrong with it.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(
            f"{field}: {problem}, which the operator did not write; suspend the job and resume it: "
            "it then starts with new pods and a new record"
        )


class ApiError(OperatorError):
    """The API server answered with an error, or not at all.

    Attributes:
        status: of the answer; 0 without one.
        reason: the server's word for it.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def taken(self) -> bool:
        """Whether there is an object of that name already."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def passing(self) -> bool:
        """Whether a refusal may be over in a moment: a server that has just started knows no roles."""
        no_role = self.status == 403 and ": User " in str(self) and " cannot " in str(self)
        return no_role or self.unknown_kind

    @property
    def unknown_kind(self) -> bool:
        """Whether the server does not find a kind that it was told of a moment ago."""
        return self.status == 403 and "no matches for kind" in str(self)

    @property
    def refusal(self) -> bool:
        """Whether the server will not have this object: a quota, a webhook, a LimitRange, missing rights."""
        return self.status in _REFUSALS
