"""Every error that the operator raises itself.

::

    OperatorError
    ├── SpecError      a field of a HorovodJob, a CompressionPolicy, a node or a pod cannot be read
    └── RecordError    the operator's own record in a job's status cannot be what it has written

Each message says what happened, where (object, field) and what to do about it.
"""

from __future__ import annotations


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
