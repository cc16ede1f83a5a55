"""A job's Secrets with its certificates, as they are in the cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from gradsieve_operator import contract, resources
from gradsieve_operator.cluster.api import Api, path
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.cluster.tls import JobContext, context_of
from gradsieve_operator.decide.observed_state import timestamp
from gradsieve_operator.resources import Manifest
from gradsieve_operator.spec import HorovodJob

PROVEN_SECONDS = 30.0
"""For so long Secrets are as they were read or written, whatever depends on it. They are not watched: to list
them would be to read all of a namespace's."""

_DELIVERY_SECONDS = 120.0
"""By then nodes have delivered a changed Secret, even if they look only every minute and a half."""


async def read_secrets(api: Api, job: HorovodJob, memory: Memory) -> None:
    """Take note of what the job's Secrets hold, of all of them or of none; each version of one is read once.

    Raises:
        ApiError: the server did not answer.
    """
    # All at once: a worker that a running job lacks waits for each of these answers.
    names = resources.secret_names(job)
    found = await asyncio.gather(*(api.find(path("v1", "secrets", job.namespace, name)) for name in names))
    secrets = {
        name: secret
        for name, secret in zip(names, found, strict=True)
        if secret is not None and resources.owned(secret, job.uid)
    }
    await note_secrets(job, memory, secrets)


async def whole_secrets(api: Api, job: HorovodJob, memory: Memory) -> dict[str, Manifest]:
    """Return the job's Secrets that are not lost, with all that they hold.

    Raises:
        ApiError: the server did not answer, or one of them has gone.
    """
    sound = [name for name in resources.secret_names(job) if name not in memory.held.lost]
    return {name: await api.get(path("v1", "secrets", job.namespace, name)) for name in sound}


async def note_secrets(job: HorovodJob, memory: Memory, secrets: Mapping[str, Manifest]) -> None:
    """Take note of the job's Secrets as the server has just shown them, all that there are."""
    for name, found in secrets.items():
        version = "{uid}/{resourceVersion}".format_map(found["metadata"])
        if memory.contents.get(name, ("", None))[0] != version:
            # Hundreds of certificates take a noticeable time, which the other jobs should not wait for.
            contents = await asyncio.to_thread(resources.read_secret, job, name, found)
            memory.contents[name] = version, contents
    # Not before all are there: of some alone it would follow that the others are lost.
    own = contract.operator_secret(job.name)
    kept = {name: _kept(found, whole=name == own) for name, found in secrets.items()}
    if kept.get(own) != memory.secrets.get(own):
        # Else its sessions go on: before each pod that is made Secrets are read, and mostly are the same.
        memory.context = None
    memory.secrets, memory.secrets_read_at = kept, time.monotonic()
    memory.held = resources.held(job, {name: memory.contents[name][1] for name in secrets})


def _kept(secret: Manifest, *, whole: bool) -> Manifest:
    """Return what is remembered of a Secret: the keys of a thousand jobs' workers are no use to us."""
    metadata = {name: value for name, value in secret["metadata"].items() if name != "managedFields"}
    return {"metadata": metadata, **({"data": secret.get("data") or {}} if whole else {})}


def operator_context(job: HorovodJob, memory: Memory) -> JobContext | None:
    """Return the TLS context for calls to the job's coordinator; None without a usable certificate."""
    name = contract.operator_secret(job.name)
    if memory.held.authority is None or name in memory.held.lost or name not in memory.secrets:
        return None
    if memory.context is None:
        memory.context = context_of(memory.secrets[name])
    return memory.context


def certificates_delivered(job: HorovodJob, memory: Memory, now: float) -> bool:
    """Whether the coordinator has had the time to hear of the authority behind the operator's certificate."""
    secret = memory.secrets.get(contract.operator_secret(job.name)) or {"metadata": {}}
    notes = secret["metadata"].get("annotations") or {}
    return now - timestamp(notes.get(resources.RENEWED_ANNOTATION)) >= _DELIVERY_SECONDS
