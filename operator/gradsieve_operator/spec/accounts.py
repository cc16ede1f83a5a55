"""Which ServiceAccounts the templates of jobs may name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradsieve_operator.errors import SpecError
from gradsieve_operator.spec.job import HorovodJob
from gradsieve_operator.spec.values import OBJECT_NAME

VARIABLE = "GRADSIEVE_ALLOWED_SERVICE_ACCOUNTS"


def service_account(spec: Mapping[str, Any]) -> str | None:
    """Return the account that a pod's spec names, by either of the two fields that Kubernetes has for it."""
    return spec.get("serviceAccountName") or spec.get("serviceAccount") or None


@dataclass(frozen=True)
class AllowedAccounts:
    """The accounts that templates may name, besides the one that the operator makes for each job.

    Attributes:
        names: as ``name``, in every namespace, or as ``namespace/name``; None for any account.
    """

    names: frozenset[str] | None

    @classmethod
    def read(cls, text: str | None) -> AllowedAccounts:
        """Read a list with commas; None allows every account, an empty one none.

        Raises:
            SpecError: an item is no name.
        """
        if text is None:
            return cls(None)
        names = frozenset(item.strip() for item in text.split(",") if item.strip())
        for name in sorted(names):
            parts = name.split("/")
            if len(parts) > 2 or not all(OBJECT_NAME.fullmatch(part) for part in parts):
                raise SpecError(VARIABLE, f"has {name!r}; it lists accounts as name or namespace/name")
        return cls(names)

    def check(self, job: HorovodJob) -> None:
        """Check the accounts that the templates of ``job`` name.

        Raises:
            SpecError: one is not allowed.
        """
        if self.names is None:
            return
        own = f"{job.namespace}/"
        here = {name.removeprefix(own) for name in self.names if "/" not in name or name.startswith(own)}
        listed = ", ".join(sorted(here)) or "none"
        for field, name in _named(job):
            if name != job.name and name not in here:
                raise SpecError(
                    field,
                    f"{name!r} is not among the accounts that this operator lets jobs use here "
                    f"({listed}): leave it out for the job's own account, which has no rights, or ask "
                    f"whoever runs the operator to add it to {VARIABLE}",
                )


def _named(job: HorovodJob) -> Iterator[tuple[str, str]]:
    """Yield the accounts that a job's templates name, and where."""
    templates = [(f"spec.workerGroups[{index}]", group.template) for index, group in enumerate(job.groups)]
    if job.launcher.template is not None:
        templates.append(("spec.launcher", job.launcher.template))
    for where, template in templates:
        name = service_account(template.get("spec") or {})
        if name is not None:
            yield f"{where}.template.spec.serviceAccountName", name


ANY_ACCOUNT = AllowedAccounts(None)
