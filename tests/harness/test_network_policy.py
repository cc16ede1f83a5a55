"""Policies become nft rules that say what the API objects say and no more."""

import re

import pytest
from cluster.network_policy import Endpoint, endpoints, matches, ruleset

WEB = Endpoint("shop", {"app": "web"}, "10.0.1.1", {("http", "TCP"): 8000})
OLD_WEB = Endpoint("shop", {"app": "web"}, "10.0.1.2", {("http", "TCP"): 9000})
DATABASE = Endpoint("shop", {"app": "database"}, "10.0.1.3")
STRANGER = Endpoint("other", {"app": "web"}, "10.0.2.1")
PODS = [WEB, OLD_WEB, DATABASE, STRANGER]
NAMESPACES = {"shop": {"kubernetes.io/metadata.name": "shop"}, "other": {"team": "blue"}}


def policy(**spec):
    return {"metadata": {"name": "tested", "namespace": "shop"}, "spec": {"podSelector": {}} | spec}


def chain(text, name):
    """The rules of one chain, without the final drop."""
    body = re.search(rf"chain {name} {{\n(.*?)\n  }}", text, re.DOTALL)[1]
    rules = [line.strip() for line in body.splitlines()]
    assert rules[-1] == "drop"
    return rules[:-1]


def isolated(text, direction):
    found = re.search(rf"set {direction}_isolated {{ type ipv4_addr;(?: elements = {{ (.*?) }})? }}", text)
    return set((found[1] or "").split(", ")) - {""}


def rendered(*policies):
    return ruleset(policies, PODS, NAMESPACES)


def test_without_policies_no_pod_is_isolated():
    text = rendered()
    assert isolated(text, "ingress") == isolated(text, "egress") == set()


def test_a_policy_isolates_the_pods_of_its_own_namespace_that_it_selects():
    text = rendered(policy(podSelector={"matchLabels": {"app": "web"}}))
    assert isolated(text, "ingress") == {"10.0.1.1", "10.0.1.2"}
    assert isolated(text, "egress") == set()
    assert chain(text, "ingress") == []


@pytest.mark.parametrize(
    ("spec", "directions"),
    [
        pytest.param({}, {"ingress"}, id="without types or rules: ingress"),
        pytest.param({"egress": []}, {"ingress", "egress"}, id="with egress rules: both"),
        pytest.param({"policyTypes": ["Egress"]}, {"egress"}, id="as its types say"),
    ],
)
def test_directions_follow_the_types_or_their_default(spec, directions):
    text = rendered(policy(**spec))
    assert {it for it in ("ingress", "egress") if isolated(text, it)} == directions


@pytest.mark.parametrize(
    ("peer", "sources"),
    [
        pytest.param({"podSelector": {}}, "10.0.1.1, 10.0.1.2, 10.0.1.3", id="pods of the same namespace"),
        pytest.param({"namespaceSelector": {"matchLabels": {"team": "blue"}}}, "10.0.2.1", id="of another"),
        pytest.param(
            {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}},
            "10.0.1.1, 10.0.1.2, 10.0.2.1",
            id="of any namespace, by label",
        ),
        pytest.param({"ipBlock": {"cidr": "10.9.0.0/16"}}, "10.9.0.0/16", id="a network"),
    ],
)
def test_a_peer_lets_in_those_that_it_selects(peer, sources):
    database = {"matchLabels": {"app": "database"}}
    text = rendered(policy(podSelector=database, ingress=[{"from": [peer]}]))
    assert chain(text, "ingress") == [f"ip saddr {{ {sources} }} ip daddr {{ 10.0.1.3 }} return"]


def test_a_peer_that_selects_nobody_lets_nobody_in():
    text = rendered(policy(ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "absent"}}}]}]))
    assert chain(text, "ingress") == []


def test_exceptions_of_a_network_stay_out():
    block = {"cidr": "10.9.0.0/16", "except": ["10.9.1.0/24"]}
    database = {"matchLabels": {"app": "database"}}
    text = rendered(
        policy(podSelector=database, policyTypes=["Egress"], egress=[{"to": [{"ipBlock": block}]}])
    )
    assert chain(text, "egress") == [
        "ip saddr { 10.0.1.3 } ip daddr { 10.9.0.0/16 } ip daddr != { 10.9.1.0/24 } return"
    ]


@pytest.mark.parametrize(
    ("port", "rule"),
    [
        pytest.param({"port": 80}, "tcp dport { 80 }", id="TCP by default"),
        pytest.param({"port": 53, "protocol": "UDP"}, "udp dport { 53 }", id="another protocol"),
        pytest.param({"port": 80, "endPort": 90}, "tcp dport { 80-90 }", id="a range"),
        pytest.param({"protocol": "UDP"}, "meta l4proto udp", id="all ports of a protocol"),
    ],
)
def test_a_port_opens_itself_alone(port, rule):
    database = {"matchLabels": {"app": "database"}}
    text = rendered(policy(podSelector=database, ingress=[{"ports": [port]}]))
    assert chain(text, "ingress") == [f"ip daddr {{ 10.0.1.3 }} {rule} return"]


def test_a_named_port_is_what_each_pod_means_by_it():
    text = rendered(
        policy(podSelector={"matchLabels": {"app": "web"}}, ingress=[{"ports": [{"port": "http"}]}])
    )
    assert chain(text, "ingress") == [
        "ip daddr { 10.0.1.1 } tcp dport { 8000 } return",
        "ip daddr { 10.0.1.2 } tcp dport { 9000 } return",
    ]


def test_an_empty_rule_lets_everybody_in():
    text = rendered(policy(podSelector={"matchLabels": {"app": "database"}}, ingress=[{}]))
    assert chain(text, "ingress") == ["ip daddr { 10.0.1.3 } return"]


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ({"key": "app", "operator": "In", "values": ["web", "api"]}, True),
        ({"key": "app", "operator": "NotIn", "values": ["web"]}, False),
        ({"key": "tier", "operator": "NotIn", "values": ["web"]}, True),
        ({"key": "app", "operator": "Exists"}, True),
        ({"key": "app", "operator": "DoesNotExist"}, False),
    ],
)
def test_expressions_select_as_the_api_says(expression, selected):
    assert matches({"matchExpressions": [expression]}, {"app": "web"}) is selected


def test_pods_without_an_address_of_their_own_and_finished_ones_are_left_out():
    def pod(name, **changes):
        spec = {"containers": [{"ports": [{"name": "http", "containerPort": 80}]}]} | changes.get("spec", {})
        status = {"podIP": "10.0.0.1", "phase": "Running"} | changes.get("status", {})
        return {"metadata": {"namespace": "shop", "name": name}, "spec": spec, "status": status}

    counted = endpoints(
        [
            pod("counted"),
            pod("starting", status={"podIP": None}),
            pod("of the host", spec={"hostNetwork": True}),
            pod("finished", status={"phase": "Succeeded"}),
        ]
    )
    assert counted == [Endpoint("shop", {}, "10.0.0.1", {("http", "TCP"): 80})]
