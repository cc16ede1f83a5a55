"""The compression that a job's ranks go by, which is not always the one that it asks for."""

from __future__ import annotations

from gradsieve_operator.decide.actions import Reason
from gradsieve_operator.decide.observed_state import ObservedState
from gradsieve_operator.errors import SpecError
from gradsieve_operator.spec import Compression, JobCompression


def effective_compression(observed: ObservedState) -> tuple[Compression, Reason | None]:
    """Return what ranks shall go by, and why that is not what the job asks for; None when it is.

    1. A job that has not started since its creation or suspension goes by what it asks for.
    2. While its policy is away or contradicts it, it goes by what it has.
    3. Its algorithm is that of its start: its commits, and ranks that survive a loss, hold that one's state.
    4. A density that is not given any more stays: ranks that started with it do not know their program's own,
       and would take that at the next restart, whenever it comes.
    """
    has, asked = observed.progress.compression, observed.compression or Compression()
    if has is None:
        return asked, None
    if observed.unresolved:
        message = f"{observed.unresolved}; until that is mended ranks go on with what they have"
        return has, Reason("InvalidSpec", message)
    if asked.algorithm != has.algorithm:
        message = (
            f"ranks go on with {_algorithm(has)} and its densities, not with {_algorithm(asked)}: "
            "suspend the job to change that"
        )
        return has, Reason("AlgorithmKept", message)
    try:
        # Whether limits go with the algorithm was judged where they were given.
        whole = JobCompression(own=asked, adapted=True).resolve(has)
    except SpecError as error:
        message = f"{error}; what is removed stays until the job is suspended, so that nothing was changed"
        return has, Reason("DensitiesKept", message)
    given = asked.manifest()
    left = [f"{name} {value}" for name, value in whole.manifest().items() if name not in given]
    if not left:
        return whole, None
    message = f"not given any more: {', '.join(left)}; ranks keep that until the job is suspended"
    return whole, Reason("DensitiesKept", message)


def _algorithm(compression: Compression) -> str:
    named = compression.algorithm
    return "their program's own algorithm" if named is None else f"algorithm {named}"
