"""Which children are to be made, ready to be applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gradsieve_operator import contract, resources
from gradsieve_operator.decide.actions import Action, Create, RenewCertificates, Wanted
from gradsieve_operator.decide.members import certified_hosts, slots
from gradsieve_operator.decide.observed_state import ObservedState, Places, Unplaceable
from gradsieve_operator.decide.progress import Progress
from gradsieve_operator.resources import Manifest
from gradsieve_operator.spec import HorovodJob


def prerequisites(observed: ObservedState) -> tuple[Action, ...]:
    """Return what makes the children that pods rely on, as far as they are missing."""
    manifests = resources.shared_children(observed.job, observed.neighbours)
    missing = tuple(
        Create(manifest)
        for manifest in manifests
        if (manifest["kind"], manifest["metadata"]["name"]) not in observed.children
    )
    return (*missing, *renewal(observed))


def renewal(observed: ObservedState) -> tuple[Action, ...]:
    """Return what makes lost certificates again; nothing where all of them have to be issued for new pods."""
    if observed.authority is None or not observed.lost:
        return ()
    return (RenewCertificates(certified_hosts(observed.job)),)


def build(
    job: HorovodJob,
    authority: str | None,
    hosts: Iterable[str],
    generation: int,
    attempt: int | None,
    nodes: Mapping[str, str],
) -> list[Manifest]:
    """Build pods for workers on ``hosts`` and, if ``attempt`` is given, a coordinator, which comes first."""
    wanted, signed = set(hosts), authority or ""
    manifests = []
    if attempt is not None:
        node = nodes.get(contract.coordinator_pod(job.name, attempt))
        manifests.append(resources.coordinator(job, attempt=attempt, authority=signed, node=node))
    for slot in slots(job):
        if slot.host in wanted:
            name = contract.worker_pod(job.name, slot.group.name, slot.index, generation)
            manifests.append(
                resources.worker(
                    job,
                    slot.group,
                    slot.index,
                    generation=generation,
                    authority=signed,
                    node=nodes.get(name),
                )
            )
    return manifests


def places_for(wanted: Wanted, observed: ObservedState) -> Places | Unplaceable | None:
    """Return what was found for what is wanted, None if it is to be asked for.

    Where the planner is not to choose, any node will do.
    """
    return observed.places if observed.planned else Places(wanted.hosts, {})


def first_pods(job: HorovodJob, progress: Progress) -> list[Manifest]:
    """Return the pods that a waiting job will be made of, as far as the planner looks at them."""
    hosts = [slot.host for slot in slots(job)]
    return build(job, None, hosts, progress.generation + 1, progress.attempt + 1, {})


def last_pods(job: HorovodJob, progress: Progress) -> list[str]:
    """Return the names of the pods that were last recorded before they were made, of all places of a job."""
    workers = (
        contract.worker_pod(job.name, slot.group.name, slot.index, progress.generation) for slot in slots(job)
    )
    return [contract.coordinator_pod(job.name, progress.attempt), *workers]


def begun(progress: Progress, generation: int, attempt: int | None) -> Progress:
    """Return the progress to record before pods are made: no name of a pod is ever used again."""
    return replace(progress, generation=generation, attempt=progress.attempt if attempt is None else attempt)
