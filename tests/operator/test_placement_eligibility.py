"""A pod may only be on nodes that its selectors, affinity and tolerations allow."""

import pytest
from worlds import node

from gradsieve_operator.placement.eligibility import obstacle

LABELS = {"disk": "ssd", "size": "4", "nvidia.com/gpu.product": "Tesla-T4"}


def taint(effect="NoSchedule", value="yes"):
    return {"taints": [{"key": "reserved", "value": value, "effect": effect}]}


def why(spec=None, gpu_products=(), **node_more):
    return obstacle(node("n1", labels=LABELS, **node_more), spec or {}, gpu_products)


def test_an_ordinary_node_is_open():
    assert why() is None


def test_a_node_that_is_not_ready_is_not():
    assert why(ready="Unknown") == "not ready"


def test_a_cordoned_node_is_open_to_those_who_tolerate_it_only():
    assert why(spec={"tolerations": [{"operator": "Exists"}]}, ready="True") is None
    cordon = node("n1", spec={"unschedulable": True})
    assert obstacle(cordon, {}, ()) == "cordoned"
    assert obstacle(cordon, {"tolerations": [{"operator": "Exists"}]}, ()) is None


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "reserved", "value": "yes"}, True),
        ({"key": "reserved", "operator": "Equal", "value": "no"}, False),
        ({"key": "reserved", "operator": "Exists"}, True),
        ({"key": "reserved", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Exists"}, True),
        ({"value": "yes"}, False),
    ],
)
@pytest.mark.parametrize("effect", ["NoSchedule"])
def test_a_taint_keeps_out_those_who_do_not_tolerate_it(toleration, tolerated, effect):
    tainted = node("n1", spec=taint(effect))
    assert (obstacle(tainted, {"tolerations": [toleration]}, ()) is None) == tolerated
    assert obstacle(tainted, {}, ()) == f"tainted reserved=yes:{effect}"


def test_a_taint_that_only_prefers_keeps_nobody_out():
    assert obstacle(node("n1", spec=taint("PreferNoSchedule")), {}, ()) is None


def test_a_node_selector_must_match_in_every_label():
    assert why({"nodeSelector": {"disk": "ssd"}}) is None
    assert why({"nodeSelector": {"disk": "ssd", "zone": "a"}}) == "not labelled zone=a"


def test_gpus_of_another_product_are_no_use():
    assert why(gpu_products=("Tesla-T4", "A100")) is None
    assert why(gpu_products=("A100",)) == "without A100"


def affinity(*terms):
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def expression(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("term", "matches"),
    [
        (expression("disk", "In", "hdd", "ssd"), True),
        (expression("disk", "In", "hdd"), False),
        (expression("disk", "NotIn", "hdd"), True),
        (expression("zone", "NotIn", "a"), True),
        (expression("disk", "Exists"), True),
        (expression("zone", "Exists"), False),
        (expression("zone", "DoesNotExist"), True),
        (expression("size", "Gt", "3"), True),
        (expression("size", "Gt", "4"), False),
        (expression("size", "Lt", "5"), True),
        (expression("disk", "Gt", "3"), False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}, False),
        ({}, False),
    ],
)
def test_required_node_affinity_is_kept_to(term, matches):
    assert (why(affinity(term)) is None) == matches


def test_one_term_is_enough_and_all_expressions_of_it_are_needed():
    assert why(affinity(expression("disk", "In", "hdd"), expression("size", "Exists"))) is None
    both = {
        "matchExpressions": [
            *expression("disk", "Exists")["matchExpressions"],
            *expression("zone", "Exists")["matchExpressions"],
        ]
    }
    assert why(affinity(both)) == "outside the required node affinity"
