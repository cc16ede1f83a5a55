"""The schema of HorovodJob's status."""

from __future__ import annotations

import re

from gradsieve_operator.schema.parts import Schema, fields, flag, items, number, text, time, word
from gradsieve_operator.spec.values import (
    ALGORITHMS,
    MAX_DENSITY,
    MAX_GPU_PRODUCTS,
    MAX_GROUP_NAME,
    MAX_GROUPS,
    MAX_LABEL_VALUE,
    MAX_WORKERS,
)

_MANY = 2**53 - 1  # the API server keeps limits as floats, and refuses every value if one is none of int64
_MAX_RESTARTS = 2**31 - 1
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
            "restartCount": number("Restarts after failures.", 0, _MAX_RESTARTS),
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
            "progress": _progress(),
        },
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
        },
        required=["name"],
    )


def _plan() -> Schema:
    return fields(
        "The settings that ranks shall have and have.",
        {
            "generation": number("Of the plan that ranks shall follow.", 0, _MANY),
            "appliedGeneration": number("Of the plan that they follow.", 0, _MANY),
            "densityPermille": number("Entries sent by that plan, of a thousand.", 1, MAX_DENSITY),
            "reason": text("Why it was changed.", longest=1024),
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
            "densityPermille": number("Entries sent, of a thousand.", 0, MAX_DENSITY),
            "committedStep": number("Step of the last commit.", 0, _MANY),
            "slowestWorker": text("Host of the rank with the longest steps.", longest=MAX_LABEL_VALUE),
        },
    )


def _progress() -> Schema:
    size = fields(
        "Of a group.",
        {
            "name": text("Its name.", longest=MAX_GROUP_NAME),
            "replicas": number("Workers.", 0, MAX_WORKERS),
        },
        required=["name", "replicas"],
    )
    counters = {
        "generation": "Counts the times that worker pods were made.",
        "attempt": "Counts coordinators.",
        "givenUp": "Last generation of workers of a placement that failed.",
        "givenUpAttempt": "Last coordinator of a placement that failed.",
        "restarts": "Restarts after failures.",
        "overtaken": "Jobs that came later and were placed while it waited.",
        "setbacks": "Placements that failed since the last one that held.",
        "roster": "Generation of the last list of workers that the coordinator got.",
        "planGeneration": "Of the last plan that the coordinator got.",
    }
    moments = {
        "waitingSince": "When it first asked for places.",
        "waitedSince": "When it first asked for the places that it has.",
        "retryAt": "Nothing is placed before.",
        "started": "When all pods had their nodes.",
        "changed": "When ranks last began or ceased to run.",
        "finished": "When it ended.",
    }
    flags = {"running": "Whether ranks run.", "succeeded": "How it ended."}
    compression = fields(
        "What ranks go by since the job started.",
        {
            "algorithm": word("Rule that selects the entries.", ALGORITHMS),
            "densityPermille": number("Entries sent, of a thousand.", 1, MAX_DENSITY),
            "minDensityPermille": number("Least density.", 1, MAX_DENSITY),
            "maxDensityPermille": number("Highest density.", 1, MAX_DENSITY),
        },
    )
    host = text("Name of a host.", longest=MAX_LABEL_VALUE)
    return fields(
        "The operator's own record, by which it goes on after a restart; not for others to read or write.",
        {
            **{name: number(about, 0, _MANY) for name, about in counters.items()},
            **{name: time(about) for name, about in moments.items()},
            **{name: flag(about) for name, about in flags.items()},
            "members": text("Digest of the last list of workers.", longest=64),
            "compression": compression,
            "plan": text("Digest of the last plan.", longest=64),
            "absent": items("Hosts whose place is not filled yet.", host, most=MAX_WORKERS + 1),
            "sizes": items("Sizes that the workers were chosen for.", size, most=MAX_GROUPS),
        },
    )
