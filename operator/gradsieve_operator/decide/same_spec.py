"""Whether pods were made from the spec that their job has now, however that reads in this version: pure."""

from __future__ import annotations

from dataclasses import replace

from gradsieve_operator import resources
from gradsieve_operator.decide.observed_state import ObservedState, Pod
from gradsieve_operator.decide.progress import Progress


def anchored(observed: ObservedState) -> Progress:
    """Return the progress with all digests by which the job's present spec is known.

    A pod carries the digest of the spec that it was made from. The same spec may have another digest later: a
    new CustomResourceDefinition fills in a default, or a new operator takes a further field into the digest.
    Pods must not go for that. What tells such a change from an author's is ``metadata.generation``, which the
    API server raises with every write of the spec, and with nothing else.

    1. Nobody has written the spec since the last look: a digest that is new stands for the same spec.
    2. Somebody has, and the digest is known: something else was changed, as the number of workers.
    3. Somebody has, and it is not: it is another spec, and pods of the old one are of no use any more.

    When both happen between two looks it passes for the third: pods are made anew where they need not be.
    """
    progress, job = observed.progress, observed.job
    if observed.invalid or progress.finished is not None:
        return progress  # an invalid job may be an outline
    digest = resources.origin(job)
    written = progress.spec_generation != job.generation
    if digest in progress.origins:
        return replace(progress, spec_generation=job.generation) if written else progress
    known = () if written else tuple(each for each in progress.origins if _carried(each, observed))
    return replace(progress, spec_generation=job.generation, origins=(*known, digest))


def of_another_spec(pod: Pod, observed: ObservedState) -> bool:
    """Return whether a pod was made from another spec than the job has now; see `anchored`."""
    return pod.origin not in observed.progress.origins


def _carried(digest: str, observed: ObservedState) -> bool:
    return any(pod.origin == digest for pod in observed.pods)
