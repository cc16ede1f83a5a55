"""The operator's image runs as a restricted pod, and holds nothing but what the operator needs."""

from cluster.pods import ARBITRARY_UID, pod

LOOK = """
import importlib.util, os
import gradsieve_operator, kopf
print(os.getuid(), [name for name in ("torch", "pip", "gradsieve") if importlib.util.find_spec(name)])
"""


def test_the_operator_image_runs_under_an_arbitrary_id_with_a_read_only_root(cluster, namespace):
    image = cluster.operator_image
    cluster.apply(pod(namespace, "look", image, ["python3", "-c", LOOK], restartPolicy="Never"))
    cluster.wait_for_pod(namespace, "look", "Succeeded", 120)
    assert cluster.kubectl("logs", "--namespace", namespace, "look") == f"{ARBITRARY_UID} []\n"


def test_the_operator_image_has_kopf_on_its_path(cluster, namespace):
    cluster.apply(
        pod(namespace, "operator", cluster.operator_image, ["kopf", "--version"], restartPolicy="Never")
    )
    cluster.wait_for_pod(namespace, "operator", "Succeeded", 120)
    assert "kopf, version" in cluster.kubectl("logs", "--namespace", namespace, "operator")


def test_how_this_machine_reaches_packages_is_not_in_the_image(cluster, namespace):
    cluster.apply(pod(namespace, "look", cluster.operator_image, ["sleep", "600"]))
    cluster.wait_for_pod(namespace, "look", "Running", 120)
    assert cluster.execute(namespace, "look", "sh", "-c", "cat /etc/pip.conf 2>/dev/null || true") == ""
