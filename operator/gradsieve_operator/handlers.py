"""kopf's side of the operator: which events wake it. Run with ``kopf run -m gradsieve_operator``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

import kopf

from gradsieve_operator import contract, transitions
from gradsieve_operator.cluster.operator import Operator, Options

_REQUEST_SECONDS = 30.0
_WORKERS = 4

_OPTIONS = Options.read(os.environ)
operator = Operator(_OPTIONS)


# kopf would try again for ever, in a process that looks alive; one that ends is started anew by its kubelet.
@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Configure kopf, then wait to be the leader: kopf watches nothing before this returns."""
    configure(settings, _OPTIONS)
    if _OPTIONS.transitions:
        transitions.write_to(sys.stdout)
    await operator.start()


@kopf.on.cleanup()
async def stop(**_: Any) -> None:
    """Let go of everything."""
    await operator.stop()


@kopf.on.event(contract.GROUP, contract.VERSION, contract.JOB_PLURAL)
async def job_seen(
    *, event: kopf.RawEvent, namespace: str | None, name: str, meta: Mapping[str, Any], **_: Any
) -> None:
    """A job was made, changed or deleted."""
    version = str(meta.get("resourceVersion", ""))
    operator.job_seen(namespace or "", name, version, deleted=event["type"] == "DELETED")


@kopf.on.event(contract.GROUP, contract.VERSION, contract.POLICY_PLURAL)
async def policy_seen(*, namespace: str | None, **_: Any) -> None:
    """A policy was made, changed or deleted."""
    await operator.policy_changed(namespace or "")


@kopf.on.event("v1", "pods", labels={contract.LABEL_JOB: kopf.PRESENT})
async def pod_seen(
    *, namespace: str | None, labels: Mapping[str, str], body: Mapping[str, Any], **_: Any
) -> None:
    """A pod of a job was made, changed or deleted."""
    operator.pod_seen(namespace or "", labels[contract.LABEL_JOB], body)


def configure(settings: kopf.OperatorSettings, options: Options) -> None:
    """Set what differs from kopf's defaults.

    Nothing of kopf is left on objects: handlers of events need neither finalizers nor annotations. Should a
    later handler need them, they are ours by name and not shared with other operators.

    Args:
        settings: kopf's.
        options: how the operator runs.
    """
    # Where namespaces are named, kopf takes the names as they are: to watch for namespaces and for kinds that
    # come later it would need rights in the whole cluster.
    settings.scanning.disabled = bool(options.namespaces)
    settings.persistence.finalizer = f"{contract.GROUP}/operator"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=contract.GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=contract.GROUP)
    settings.networking.request_timeout = _REQUEST_SECONDS
    settings.networking.connect_timeout = _REQUEST_SECONDS / 3
    settings.watching.connect_timeout = _REQUEST_SECONDS / 3
    settings.execution.max_workers = _WORKERS
    # Idle workers, one per object, are what large clusters cost kopf.
    settings.queueing.idle_timeout = 0.5
    settings.watching.label_selectors["pods"] = contract.LABEL_JOB
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = 30.0
    # kopf tells of every event that was handled, which here means: put into a queue.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
