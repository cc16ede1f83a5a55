"""Version v1alpha1 only ever gains optional fields.

``crds_of_VERSION`` holds the definitions of each version that was released, and for 0.1.0 those of the plain
manifests from before the chart. What users have made with them is accepted and means the same for ever.
"""

import copy
import re
from pathlib import Path

import pytest
import yaml
from manifests import ROOT
from narrowed_schemas import narrowed

from gradsieve_operator.schema import job_definition, policy_definition

RECORDED = sorted(Path(__file__).parent.glob("crds_of_*/*.yaml"))
BOUNDS = ("minDensityPermille", "maxDensityPermille")
# Limits are taken beside an adaptation as well, which no recorded object has.
LIMITS = {
    where: " || ".join(
        (
            f"!has({where}.algorithm)",
            f"{where}.algorithm in ['Layered', 'Importance']",
            f"({' && '.join(f'!has({where}.{bound})' for bound in BOUNDS)})",
        )
    )
    for where in ("self", "self.compression")
}
# What was written otherwise since, and takes what it took.
SAME = {
    LIMITS["self"]: f"has(self.adaptation) || {LIMITS['self']}",
}
WORKERS = "0"
for index in reversed(range(16)):
    WORKERS = f"(self.size() > {index} ? self[{index}].replicas + {WORKERS} : 0)"
FIRST = "[0].template.spec.containers[0]"
EACH = "g.template.spec.containers[0]"
# Said of whole templates, and of the spec, before: what is asked where it matters costs less.
MOVED = {
    **{
        f"{template}.template.spec.{field}": "false"
        for template in ("launcher", "workerGroups[]")
        for field in ("hostname", "subdomain", "nodeName", "schedulingGates")
    },
    "launcher.template.spec.restartPolicy": "self == 'Never'",
    "workerGroups[].template.spec.restartPolicy": "self == 'Never'",
    "workerGroups[].template.spec.containers": (
        "has(self[0].command) && self[0].command.size() > 0 && self[0].command[0] != ''"
    ),
}
OF_ALL_GROUPS = (
    f"{WORKERS} <= 256",
    *(
        f"self.size() == 1 || self.all(g, has({EACH}.{part}) ? has(self{FIRST}.{part}) && "
        f"{EACH}.{part} == self{FIRST}.{part} : !has(self{FIRST}.{part}))"
        for part in ("command", "args")
    ),
)
# The operator alone writes a status, and never by apply: nobody's fields are merged otherwise than before.
UNNOTICED = {
    "v1alpha1.status: x-kubernetes-map-type is 'atomic' instead of None",
    # Said of spec.compression before, where adaptation cannot be seen.
    "v1alpha1.spec: a rule is new: !has(self.compression) || has(self.adaptation) || "
    + LIMITS["self.compression"],
    *(f"v1alpha1.spec.{where}: a rule is new: {rule}" for where, rule in MOVED.items()),
    *(f"v1alpha1.spec.workerGroups: a rule is new: {rule}" for rule in OF_ALL_GROUPS),
}
TODAY = {each["metadata"]["name"]: each for each in (job_definition(), policy_definition())}


@pytest.mark.parametrize("path", RECORDED, ids=[f"{path.parent.name}/{path.stem}" for path in RECORDED])
def test_todays_definition_takes_nothing_away_from_a_recorded_one(path):
    recorded = yaml.safe_load(path.read_text())
    assert set(narrowed(recorded, TODAY[recorded["metadata"]["name"]], SAME)) <= UNNOTICED


def test_the_definitions_of_each_released_version_are_recorded():
    released = re.findall(r"^## ([0-9.]+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    recorded = {path.parent.name.removeprefix("crds_of_") for path in RECORDED}
    assert {*released, "0.1.0"} <= recorded


def spec(definition):
    return definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def without_a_field(job):
    del spec(job)["properties"]["runPolicy"]["properties"]["nodeLostSeconds"]


def with_a_field_required(job):
    spec(job)["required"].append("runPolicy")


def with_a_new_field_required(job):
    spec(job)["properties"]["owner"] = {"type": "string"}
    spec(job)["required"].append("owner")


def with_another_type(job):
    spec(job)["properties"]["suspend"]["type"] = "string"


def with_a_shorter_enum(job):
    spec(job)["properties"]["scheduling"]["properties"]["placement"]["enum"].remove("Pack")


def with_a_first_enum(job):
    spec(job)["properties"]["scheduling"]["properties"]["queueName"]["enum"] = ["a"]


def with_a_lower_maximum(job):
    spec(job)["properties"]["runPolicy"]["properties"]["backoffLimit"]["maximum"] -= 1


def with_a_higher_minimum(job):
    spec(job)["properties"]["runPolicy"]["properties"]["backoffLimit"]["minimum"] += 1


def with_a_first_bound(job):
    template = spec(job)["properties"]["workerGroups"]["items"]["properties"]["template"]
    template["properties"]["spec"]["properties"]["volumes"]["maxItems"] = 1


def with_a_rule(job):
    spec(job)["x-kubernetes-validations"].append({"rule": "has(self.runPolicy)", "message": "new"})


def with_another_default(job):
    spec(job)["properties"]["suspend"]["default"] = True


def with_another_kind_of_list(job):
    spec(job)["properties"]["workerGroups"]["x-kubernetes-list-type"] = "atomic"


def without_its_status(job):
    del job["spec"]["versions"][0]["subresources"]


def under_another_name(job):
    job["spec"]["versions"][0]["name"] = "v1alpha2"


def no_longer_in_namespaces(job):
    job["spec"]["scope"] = "Cluster"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_a_field, "nodeLostSeconds: was removed"),
        (with_a_field_required, "runPolicy: is required now"),
        (with_a_new_field_required, "owner: is required now"),
        (with_another_type, "suspend: type is"),
        (with_a_shorter_enum, "placement: enum is narrower"),
        (with_a_first_enum, "queueName: enum is narrower"),
        (with_a_lower_maximum, "backoffLimit: maximum is"),
        (with_a_higher_minimum, "backoffLimit: minimum is"),
        (with_a_first_bound, "volumes: maxItems is 1 instead of None"),
        (with_a_rule, "a rule is new: has(self.runPolicy)"),
        (with_another_default, "suspend: default is True"),
        (with_another_kind_of_list, "workerGroups: x-kubernetes-list-type is"),
        (without_its_status, "not served or stored as before"),
        (under_another_name, "v1alpha1: removed"),
        (no_longer_in_namespaces, "scope"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_would_break_a_recorded_job_is_found(change, said):
    old = TODAY["horovodjobs.gradsieve.io"]
    new = copy.deepcopy(old)
    change(new)
    [found] = narrowed(old, new)
    assert said in found


def test_a_new_optional_field_a_wider_bound_and_a_rule_less_are_no_change_for_anybody():
    old = TODAY["horovodjobs.gradsieve.io"]
    new = copy.deepcopy(old)
    spec(new)["properties"]["owner"] = {"type": "object", "required": ["name"], "properties": {}}
    spec(new)["properties"]["runPolicy"]["properties"]["backoffLimit"]["maximum"] += 1
    spec(new)["properties"]["scheduling"]["properties"]["placement"]["enum"].append("Slowest")
    spec(new)["x-kubernetes-validations"].pop()
    assert narrowed(old, new) == []


def test_a_keyword_that_is_not_compared_is_an_error():
    old = TODAY["horovodjobs.gradsieve.io"]
    new = copy.deepcopy(old)
    spec(new)["not"] = {"required": ["suspend"]}
    with pytest.raises(ValueError, match="not"):
        narrowed(old, new)
