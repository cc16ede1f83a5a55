"""The chart's files agree with the package, with each other and with what the operator reads."""

import json
import re
import tomllib

import jsonschema
import pytest
import yaml
from manifests import ROOT

from gradsieve_operator import contract
from gradsieve_operator.cluster.operator import LEASE
from gradsieve_operator.cluster.options import Options

CHART = ROOT / "helm/gradsieve"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATE = (CHART / "templates/operator.yaml").read_text()


def test_the_chart_s_version_and_its_application_s_are_the_package_s():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["version"] == chart["appVersion"] == package


def objects(schema, path=""):
    """Yield path and schema of everything that is an object."""
    if schema.get("type") == "object":
        yield path, schema
    for name, inner in {**schema.get("properties", {}), **schema.get("$defs", {})}.items():
        yield from objects(inner, f"{path}.{name}")
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from objects(inner, f"{path}[]")


@pytest.mark.parametrize(
    "schema", [pytest.param(found, id=path or "values") for path, found in objects(SCHEMA)]
)
def test_every_object_is_closed_or_maps_names_to_plain_values(schema):
    more = schema.get("additionalProperties")
    if "properties" in schema:
        assert more is False
    else:
        assert schema.get("maxProperties") == 0 or more == {"type": "string"} or "object" not in more["type"]


def test_the_default_values_pass_the_schema():
    jsonschema.validate(VALUES, SCHEMA)


def test_every_value_of_the_schema_has_a_default_and_none_is_undescribed():
    described = {name for name in SCHEMA["properties"] if name != "global"}
    assert set(VALUES) == described


def sections(values, path=()):
    yield path
    for name, inner in values.items():
        if isinstance(inner, dict) and inner and name not in ("nodeSelector", "requests", "limits"):
            yield from sections(inner, (*path, name))


@pytest.mark.parametrize("path", list(sections(VALUES)), ids=lambda path: ".".join(path) or "top")
def test_a_misspelled_value_is_refused_wherever_it_stands(path):
    values = json.loads(json.dumps(VALUES))
    where = values
    for name in path:
        where = where[name]
    where["replicaCuont"] = 1
    with pytest.raises(jsonschema.ValidationError, match="replicaCuont"):
        jsonschema.validate(values, SCHEMA)


def test_every_variable_that_the_documentation_names_is_set_by_the_chart():
    text = (ROOT / "docs/kubernetes.md").read_text()
    table = text[text.index("### 8. The operator's own settings") : text.index("### 9. Whom a job trusts")]
    documented = set(re.findall(r"^\| `(GRADSIEVE_[A-Z_]+)`", table, re.MULTILINE))
    documented |= set(re.findall(r"`(GRADSIEVE_[A-Z_]+)`,? ?[`|]", table))
    assert documented <= set(re.findall(r"GRADSIEVE_[A-Z_]+", TEMPLATE))
    assert len(documented) >= 7


def test_the_chart_s_intervals_are_the_operator_s_own():
    pace = Options().pace
    assert VALUES["intervals"] == {
        "coordinator": pace.steady,
        "telemetry": pace.telemetry,
        "secrets": pace.secrets,
    }


def test_the_chart_s_rights_name_the_operator_s_own_lease_and_ports():
    assert f"resourceNames: [{LEASE}]" in (CHART / "templates/rbac.yaml").read_text()
    assert f"port: {contract.COORDINATOR_PORT}}}" in TEMPLATE
    assert f"{contract.LABEL_ROLE}: {contract.ROLE_COORDINATOR}" in TEMPLATE
