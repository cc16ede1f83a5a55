"""docs/kubernetes.md names every field, condition and limit of the API."""

import re

import pytest
from manifests import ROOT

from gradsieve_operator.schema import job_definition
from gradsieve_operator.spec import values
from gradsieve_operator.status.conditions import ADAPTATION_HELD, RECONCILE_ERROR, TYPES

TEXT = (ROOT / "docs/kubernetes.md").read_text()
NAMED = {word.rpartition(".")[2] for word in re.findall(r"`([\w.\[\]]+)`", TEXT.replace("[]", ""))}
SCHEMA = job_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def leaves(schema):
    """Yield the names of all own fields that hold no further ones of ours."""
    for name, field in schema["properties"].items():
        inner = field.get("items", field)
        if "properties" in inner and name not in ("template", "policyRef", "conditions"):
            yield from leaves(inner)
        elif name not in ("conditions", "policyRef"):
            yield name


@pytest.mark.parametrize("field", sorted(set(leaves(SCHEMA["spec"])) | set(leaves(SCHEMA["status"]))))
def test_a_field_is_named(field):
    known_elsewhere = {"observedGeneration", "lastSampleTime", "reason"}
    assert field in NAMED | known_elsewhere


@pytest.mark.parametrize("kind", [*TYPES, ADAPTATION_HELD, RECONCILE_ERROR])
def test_a_condition_has_a_row(kind):
    assert f"\n| `{kind}` |" in TEXT


@pytest.mark.parametrize(
    "words", [values.ALGORITHMS, values.PLACEMENTS, values.BACKENDS, values.GANGS, values.MODES]
)
def test_a_value_is_named(words):
    assert set(words) <= NAMED


def test_the_limits_are_the_schema_s():
    limits = (
        f"{values.MAX_GROUPS} groups, {values.MAX_WORKERS} workers, {values.MAX_SLOTS} slots per worker, "
        f"{values.MAX_GPU_PRODUCTS} GPU products"
    )
    assert limits in TEXT
