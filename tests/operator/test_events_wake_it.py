"""What happens to jobs, pods and policies wakes the operator; it does not wait until it looks by itself."""

import asyncio

import aiohttp
import horovod_jobs as jobs
import pytest
from operator_in_memory import JOB, WOKEN_BY_EVENTS_ONLY, conditions, running_process, until

PODS = "v1/pods"
POLICY = "gradsieve.io/v1alpha1/compressionpolicies"
KINDS = {
    JOB: "HorovodJob",
    POLICY: "CompressionPolicy",
    PODS: "Pod",
    "apiextensions.k8s.io/v1/customresourcedefinitions": "CustomResourceDefinition",
    "v1/namespaces": "Namespace",
}
VERBS = {"get", "list", "watch", "create", "update", "patch", "delete"}
CLUSTERED = ("apiextensions.k8s.io/v1/customresourcedefinitions", "v1/namespaces")


@pytest.fixture
async def operator(server):
    """The operator, which has seen that there is nothing to do."""
    for resource, kind in KINDS.items():
        server.resources[resource] = {"kind": kind, "namespaced": resource not in CLUSTERED, "verbs": VERBS}
    async with running_process(WOKEN_BY_EVENTS_ONLY) as process:
        said = asyncio.create_task(process.stdout.read())
        await until(lambda: KINDS.keys() & watched(server) >= {JOB, POLICY, PODS}, 60)
        yield process
    await said


def watched(server) -> set[str]:
    """The resources on which somebody has a watch."""
    found = set()
    for each in server:
        if each.resource is not None and "watch" in each.params:
            group = f"{each.resource.group}/" if each.resource.group else ""
            found.add(f"{group}{each.resource.version}/{each.resource.plural}")
    return found


async def write(server, method: str, resource: str, content: dict, name: str = "") -> None:
    """Make or change an object through the server's door, so that those who watch hear of it."""
    root = "/api/" if resource.startswith("v1/") else "/apis/"
    group, plural = resource.rsplit("/", 1)
    url = f"{root}{group}/namespaces/research/{plural}"
    headers = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
    address = str(server.url).rstrip("/") + (f"{url}/{name}" if name else url)
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, address, json=content, headers=headers) as answer,
    ):
        assert answer.status < 300, await answer.text()


async def bind_all(server) -> None:
    """Do as the scheduler does."""
    for name, pod in server.all(PODS).items():
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        node = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        await write(server, "PATCH", PODS, {"spec": {"nodeName": node}}, name)


async def test_a_job_that_is_made_gets_pods_and_one_of_them_that_fails_a_replacement(server, operator):
    await write(server, "POST", JOB, jobs.body())
    await until(lambda: len(server.all(PODS)) == 3)
    await bind_all(server)
    await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
    container = {"name": "train", "state": {"terminated": {"exitCode": 1}}}
    failed = {"status": {"phase": "Failed", "containerStatuses": [container]}}
    await write(server, "PATCH", PODS, failed, "digits-worker-1-1")
    await until(lambda: "digits-worker-1-2" in server.all(PODS))


async def test_a_job_that_lacks_its_policy_starts_when_that_is_made(server, operator):
    await write(server, "POST", JOB, jobs.body(compression={"policyRef": {"name": "thin"}}))
    await until(lambda: conditions(server).get("Admitted", {}).get("reason") == "InvalidSpec")
    policy = {
        "metadata": {"name": "thin", "namespace": "research"},
        "spec": {"algorithm": "TopK", "densityPermille": 10},
    }
    await write(server, "POST", POLICY, policy)
    await until(lambda: len(server.all(PODS)) == 3)
