"""The committed CRDs are what the schemas say, small enough for kubectl, and bounded everywhere."""

import json

import pytest
import yaml
from manifests import ROOT

from gradsieve_operator.schema import crd_files, job_definition, policy_definition
from gradsieve_operator.schema.pod_template import derive, pod_template_schema

LIMIT = 200_000
FILES = crd_files()
CRDS = {crd["metadata"]["name"]: crd for crd in (job_definition(), policy_definition())}


def schema_of(crd):
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize("name", FILES)
def test_the_committed_file_is_the_generated_one(name):
    committed = ROOT / "manifests/crds" / name
    assert committed.read_text() == FILES[name], "run python -m gradsieve_operator.schema manifests/crds"


def test_no_other_file_lies_beside_them():
    assert {path.name for path in (ROOT / "manifests/crds").iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_and_what_kubectl_annotates_are_within_the_limit(name):
    text = FILES[name]
    assert len(text.encode()) <= LIMIT
    assert len(json.dumps(yaml.safe_load(text)).encode()) <= LIMIT


def test_the_file_says_what_the_definition_says():
    assert yaml.safe_load(FILES["horovodjobs.yaml"]) == job_definition()


def own_fields(schema, path=""):
    """Yield path and schema of every field that is ours, and none inside pod templates."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        if name not in ("template", "metadata", "apiVersion", "kind"):
            yield from own_fields(field, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from own_fields(schema["items"], f"{path}[]")


OWN = [
    pytest.param(field, id=f"{name}{path}")
    for name, crd in CRDS.items()
    for path, field in own_fields(schema_of(crd))
]


@pytest.mark.parametrize("field", OWN)
def test_every_own_field_is_described_and_bounded(field):
    kind = field["type"]
    assert "description" in field or "properties" in field
    if kind == "string":
        assert "maxLength" in field or "enum" in field or field.get("format") == "date-time"
    if kind == "array":
        assert "maxItems" in field
        assert "x-kubernetes-list-type" in field
    if kind == "integer":
        assert "minimum" in field
        assert field["maximum"] < 2**53, "the API server keeps limits as floats"
    assert kind != "number", "floats do not survive every client unchanged"


def test_jobs_and_policies_take_the_same_parallelism_and_adaptation():
    job, policy = (schema_of(crd)["properties"]["spec"]["properties"] for crd in CRDS.values())
    for field in ("parallelism", "adaptation"):
        assert job[field] == policy[field]


def test_neither_parallelism_nor_adaptation_is_filled_in_where_nobody_asks_for_it():
    properties = schema_of(job_definition())["properties"]["spec"]["properties"]
    for field in ("parallelism", "adaptation"):
        assert "default" not in json.dumps(properties[field])


def test_printer_columns_show_state_workers_and_progress():
    version = job_definition()["spec"]["versions"][0]
    shown = [column["name"] for column in version["additionalPrinterColumns"] if "priority" not in column]
    assert shown == ["State", "Ready", "Desired", "Step", "Density", "Age"]
    assert version["subresources"] == {"status": {}}
    assert job_definition()["spec"]["names"]["shortNames"] == ["hvj"]


def list_maps(schema):
    if schema.get("x-kubernetes-list-type") == "map":
        yield schema
    for inner in [
        *schema.get("properties", {}).values(),
        schema.get("items"),
        schema.get("additionalProperties"),
    ]:
        if isinstance(inner, dict):
            yield from list_maps(inner)


@pytest.mark.parametrize("name", CRDS)
def test_every_key_of_a_list_map_is_required_or_has_a_default(name):
    for found in list_maps(schema_of(CRDS[name])):
        for key in found["x-kubernetes-list-map-keys"]:
            field = found["items"]["properties"][key]
            assert key in found["items"].get("required", ()) or "default" in field


def test_the_pod_template_knows_no_texts_and_refuses_unknown_fields():
    text = json.dumps(pod_template_schema())
    assert "description" not in text
    assert "preserve-unknown-fields" not in text


DOCUMENT = {
    "components": {
        "schemas": {
            "io.k8s.api.core.v1.PodTemplateSpec": {
                "description": "long",
                "type": "object",
                "properties": {"spec": {"allOf": [{"$ref": "#/components/schemas/Spec"}], "default": {}}},
            },
            "Spec": {
                "type": "object",
                "required": ["ports"],
                "properties": {
                    "ports": {
                        "type": "array",
                        "description": "long",
                        "x-kubernetes-patch-strategy": "merge",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["port", "protocol"],
                        "items": {"allOf": [{"$ref": "#/components/schemas/Port"}], "default": {}},
                    },
                    "limits": {
                        "type": "object",
                        "additionalProperties": {
                            "$ref": "#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity"
                        },
                    },
                },
            },
            "Port": {
                "type": "object",
                "required": ["port"],
                "properties": {
                    "port": {"type": "integer", "format": "int32", "default": 0},
                    "protocol": {"type": "string", "default": "TCP"},
                    "name": {"type": "string", "default": ""},
                },
            },
        }
    }
}


def test_deriving_keeps_structure_and_the_defaults_of_list_keys_alone():
    spec = derive(DOCUMENT)["properties"]["spec"]
    assert spec["required"] == ["ports"]
    assert spec["properties"]["ports"] == {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["port", "protocol"],
        "items": {
            "type": "object",
            "required": ["port"],
            "properties": {
                "port": {"type": "integer", "format": "int32"},
                "protocol": {"type": "string", "default": "TCP"},
                "name": {"type": "string"},
            },
        },
    }
    limit = spec["properties"]["limits"]["additionalProperties"]
    assert limit["x-kubernetes-int-or-string"] is True
