"""The operator's roles allow what it asks for in the whole life of a job, and nothing else."""

import asyncio
import signal

import horovod_jobs as jobs
import pytest
from manifests import operator_rights, operator_roles
from operator_in_memory import JOB, bind, conditions, running_process, until

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
POLICY = "gradsieve.io/v1alpha1/compressionpolicies"
CHILDREN = (
    "v1/serviceaccounts",
    "v1/configmaps",
    "v1/services",
    "networking.k8s.io/v1/networkpolicies",
)
WATCHES = {"horovodjobs", "compressionpolicies", "pods", "nodes", *(kind.split("/")[-1] for kind in CHILDREN)}
NOT_ASKED = {
    # Asked by the API server's admission, where it guards owner references that block a deletion.
    ("gradsieve.io", "horovodjobs/finalizers", "update"),
}


def asked(request) -> set[tuple[str, str, str]]:
    """Group, resource and verb as the API server would look them up in roles."""
    found, method = request.resource, request.method.value.upper()
    if found is None or found.plural is None:
        return set()
    resource = found.plural + (f"/{request.subresource}" if request.subresource else "")
    verb = VERBS.get(method) or ("get" if request.name else "watch" if "watch" in request.params else "list")
    verbs = {verb}
    if "apply-patch" in request.headers.get("Content-Type", ""):
        verbs.add("create")  # an object that is applied and not there is created
    return {(found.group, resource, each) for each in verbs}


def watched(server) -> set[str]:
    return {resource for each in server for _, resource, verb in asked(each) if verb == "watch"}


def marked(server) -> bool:
    """Whether the coordinator's pod was told of a further authority."""
    return "gradsieve.io/trust" in server.all("v1/pods")["digits-coordinator-1"]["metadata"]["annotations"]


@pytest.fixture
async def requests(server):
    """All that the operator asks for while a job starts, loses a worker, ends and is deleted."""
    server.objects[POLICY, "research", "thin"] = {
        "metadata": {"name": "thin", "namespace": "research", "resourceVersion": "1"},
        "spec": {"algorithm": "TopK", "densityPermille": 10},
    }
    server.objects[JOB, "research", "digits"] = jobs.body(
        compression={"policyRef": {"name": "thin"}}, runPolicy={"ttlSecondsAfterFinished": 1}
    )
    for kind in CHILDREN:  # left by an operator that was killed, and robbed of their labels
        server.objects[kind, "research", "digits"] = {
            "metadata": {"uid": f"uid-of-{kind}", "ownerReferences": [{"uid": "uid-of-digits"}]}
        }
    async with running_process(GRADSIEVE_SECRETS_SECONDS="1") as process:
        await until(lambda: len(server.all("v1/pods")) == 3, 60)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed", 60)
        server.objects["v1/secrets", "research", "digits-operator-tls"].delete()
        await until(lambda: marked(server), 60)
        container = {"name": "train", "state": {"terminated": {"exitCode": 1}}}
        server.objects["v1/pods", "research", "digits-worker-1-1"].patch(
            {"status": {"phase": "Failed", "containerStatuses": [container]}}
        )
        await until(lambda: "digits-worker-1-2" in server.all("v1/pods"), 60)
        server.objects["v1/pods", "research", "digits-coordinator-1"].patch(
            {"status": {"phase": "Succeeded"}}
        )
        await until(lambda: not server.all(JOB), 60)
        await until(lambda: watched(server) >= WATCHES, 60)
        process.send_signal(signal.SIGTERM)
        said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, said.decode()
    return list(server)


async def test_the_roles_allow_what_is_asked_for_and_nothing_else(requests):
    elsewhere = {right for each in requests if each.namespace != "system" for right in asked(each)}
    assert elsewhere | NOT_ASKED == operator_rights("ClusterRole")
    system = [each for each in requests if each.namespace == "system"]
    assert {right for each in system for right in asked(each)} == operator_rights("Role")
    names = {
        name
        for role in operator_roles("Role")
        for rule in role["rules"]
        for name in rule.get("resourceNames", ())
    }
    assert {each.name for each in system if each.name is not None} == names


def test_only_what_has_no_name_yet_is_allowed_without_one():
    free = [rule for role in operator_roles("Role") for rule in role["rules"] if "resourceNames" not in rule]
    assert [rule["verbs"] for rule in free] == [["create"]]
