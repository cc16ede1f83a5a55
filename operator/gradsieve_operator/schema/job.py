"""The CustomResourceDefinition of HorovodJob."""

from __future__ import annotations

from gradsieve_operator.contract import GROUP, JOB_KIND, JOB_PLURAL, VERSION
from gradsieve_operator.schema.job_spec import job_spec
from gradsieve_operator.schema.job_status import job_status
from gradsieve_operator.schema.parts import Schema, definition, rules
from gradsieve_operator.spec.values import DNS_LABEL, MAX_JOB_NAME

_COLUMNS = (
    ("State", "string", '.status.conditions[?(@.type=="Running")].reason', 0),
    ("Ready", "integer", ".status.ready", 0),
    ("Desired", "integer", ".status.desired", 0),
    ("Step", "integer", ".status.telemetry.step", 0),
    ("Density", "integer", ".status.telemetry.densityPermille", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Mode", "string", ".status.plan.mode", 1),
    ("Backend", "string", ".spec.launcher.backend", 1),
    ("Restarts", "integer", ".status.restartCount", 1),
    ("Slowest", "string", ".status.telemetry.slowestWorker", 1),
)


def job_definition() -> Schema:
    """Return the CustomResourceDefinition."""
    named = (
        f"self.metadata.name.size() <= {MAX_JOB_NAME} && self.metadata.name.matches('^{DNS_LABEL.pattern}$')",
        f"metadata.name must be a DNS label of at most {MAX_JOB_NAME} characters that starts with a letter",
    )
    columns = [
        {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}
        for name, kind, path, priority in _COLUMNS
    ]
    version = {
        "additionalPrinterColumns": columns,
        "subresources": {"status": {}},
        "schema": {
            "properties": {"spec": job_spec(), "status": job_status()},
            "required": ["spec"],
            **rules(named),
        },
    }
    about = "A training job of Horovod: gangs of worker pods, and how gradients travel between them."
    return definition(JOB_KIND, JOB_PLURAL, "hvj", about, version, group=GROUP, name=VERSION)
