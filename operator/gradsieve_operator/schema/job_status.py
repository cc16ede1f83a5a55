"""The schema of HorovodJob's status."""

from __future__ import annotations

import re

from gradsieve_operator.schema.parts import Schema, fields, items, number, text, time, word
from gradsieve_operator.spec.values import (
    MAX_DENSITY,
    MAX_GPU_PRODUCTS,
    MAX_GROUP_NAME,
    MAX_GROUPS,
    MAX_LABEL_VALUE,
    MAX_WORKERS,
    MODES,
)

_MANY = 2**53 - 1  # the API server keeps limits as floats, and refuses every value if one is none of int64
_MAX_RESTARTS = 2**31 - 1
_MAX_STATUS = 2**31 - 1  # what Kubernetes itself keeps
_LONGEST_RECORD = 64 * 1024
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_TYPE = re.compile(r"[A-Z][A-Za-z0-9]*")


def job_status() -> Schema:
    """Return the schema of ``status``."""
    return fields(
        "What was seen of the job.",
        {
            "observedGeneration": number("The metadata.generation that it is about.", 0, _MANY),
            "startTime": time("When its pods were first created; anew after a suspension."),
            "completionTime": time("When it ended."),
            "exitCode": number(
                "Exit status of its program; unset if that did not end by itself.", 0, _MAX_STATUS
            ),
            "restartCount": number("Restarts, whatever for.", 0, _MAX_RESTARTS),
            "desired": number("Workers that there shall be.", 0, MAX_WORKERS),
            "ready": number("Workers that are ready.", 0, MAX_WORKERS),
            "conditions": items(
                "Standard conditions.",
                _condition(),
                most=16,
                kind="map",
                **{"x-kubernetes-list-map-keys": ["type"]},
            ),
            "workerGroups": items(
                "Workers by group.",
                _group(),
                most=MAX_GROUPS,
                kind="map",
                **{"x-kubernetes-list-map-keys": ["name"]},
            ),
            "plan": _plan(),
            "telemetry": _telemetry(),
            "record": text(
                "What the operator goes by after a restart; not for others to read or write.",
                longest=_LONGEST_RECORD,
            ),
            "progress": fields(
                "What earlier versions of the operator recorded; read once, and removed.",
                {},
                **{"x-kubernetes-preserve-unknown-fields": True},
            ),
        },
        # The operator alone writes it: that the API server notes for each field who has set it was a third of
        # the processor time of a write.
        **{"x-kubernetes-map-type": "atomic"},
    )


def _condition() -> Schema:
    return fields(
        "As metav1.Condition.",
        {
            "type": text("What it is about.", longest=316, pattern=_TYPE),
            "status": word("Whether it holds.", ("True", "False", "Unknown")),
            "observedGeneration": number("The metadata.generation that it is about.", 0, _MANY),
            "lastTransitionTime": time("When its status last changed."),
            "reason": text("Why, in one word.", longest=1024, pattern=_REASON),
            "message": text("Why, in a sentence.", longest=32768),
        },
        required=["type", "status", "lastTransitionTime", "reason", "message"],
    )


def _group() -> Schema:
    product = text("Value of the node label nvidia.com/gpu.product.", longest=MAX_LABEL_VALUE)
    counts = {
        "desired": "Workers that there shall be.",
        "active": "Pods that have not ended.",
        "ready": "Pods that are ready.",
        "succeeded": "Pods that ended well.",
        "failed": "Pods that have failed and are still there.",
    }
    return fields(
        "Workers of one group.",
        {
            "name": text("Its name.", longest=MAX_GROUP_NAME),
            **{name: number(about, 0, _MAX_RESTARTS) for name, about in counts.items()},
            "gpuProducts": items(
                "GPUs of the nodes that it is on.", product, most=MAX_GPU_PRODUCTS, kind="set"
            ),
            "mode": word("How its ranks train; unset while none do.", MODES),
        },
        required=["name"],
    )


def _plan() -> Schema:
    return fields(
        "The settings that ranks shall have and have.",
        {
            "generation": number("Of the plan that ranks shall follow.", 0, _MANY),
            "appliedGeneration": number("Of the plan that they follow.", 0, _MANY),
            "mode": word("How ranks train by that plan.", MODES),
            "densityPermille": number("Entries sent by that plan, of a thousand.", 1, MAX_DENSITY),
            "reason": text("Why it was changed, in one word.", longest=1024),
            "evidence": text("Why the operator changed it: what it had measured.", longest=1024),
            "lastChangeTime": time("When it was changed."),
        },
    )


def _telemetry() -> Schema:
    return fields(
        "What rank 0 last reported.",
        {
            "lastSampleTime": time("When it reported."),
            "step": number("Steps done.", 0, _MANY),
            "stepMilliseconds": number("Time of a step.", 0, _MANY),
            "waitPercent": number("Part of a step spent waiting for gradients.", 0, 100),
            "wireBytesPerStep": number("Bytes sent by rank 0 in a step.", 0, _MANY),
            "denseBytesPerStep": number("Bytes of a step's gradients without compression.", 0, _MANY),
            "densityPermille": number("Entries sent, of a thousand.", 0, MAX_DENSITY),
            "committedStep": number("Step of the last commit.", 0, _MANY),
            "slowestWorker": text("Host of the rank with the longest steps.", longest=MAX_LABEL_VALUE),
            "delayMilliseconds": number("Of a step, what even the busiest rank waits.", 0, _MANY),
            "windowSeconds": number("That the delay is a mean over.", 0, _MANY),
        },
    )
