"""The CustomResourceDefinitions as files for ``kubectl apply``."""

from __future__ import annotations

from typing import Any

import yaml

from gradsieve_operator.schema.compression import policy_definition
from gradsieve_operator.schema.job import job_definition

_HEADER = "# Made by `python -m gradsieve_operator.schema`; do not edit.\n"


class _Dense(dict[str, Any]):
    """The schema of a pod's field: written densely, as in block style the file would be twice as large."""


class _Dumper(yaml.SafeDumper):
    """Writes what occurs twice twice: not every reader of CRDs knows anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return that nothing is ever referred to."""
        del data
        return True


def _represent_densely(dumper: _Dumper, schema: _Dense) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", schema, flow_style=True)


_Dumper.add_representer(_Dense, _represent_densely)


def crd_files() -> dict[str, str]:
    """Return the text of each file by its name."""
    crds = (job_definition(), policy_definition())
    return {f"{crd['spec']['names']['plural']}.yaml": _HEADER + _dumped(crd) for crd in crds}


def _dumped(crd: dict[str, Any]) -> str:
    return yaml.dump(_with_dense_pods(crd), Dumper=_Dumper, sort_keys=False, width=110)


def _with_dense_pods(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_dense_pods(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "containers" in value:
        return {name: _Dense(field) for name, field in value.items()}
    return {name: _with_dense_pods(field) for name, field in value.items()}
