"""What Prometheus is told of the operator."""

import asyncio

import aiohttp
import horovod_jobs as jobs
import pytest
from operator_in_memory import JOB, bind, conditions, running, until
from prometheus_client.parser import text_string_to_metric_families

from gradsieve_operator import metrics
from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.errors import ApiError


async def scraped(port: int) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Return what ``/metrics`` says: name -> labels -> value."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await answer.text()
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def of(found, name: str, **labels: str) -> float:
    """Return one value, 0 for what was not counted yet."""
    return found.get(f"gradsieve_operator_{name}", {}).get(frozenset(labels.items()), 0.0)


async def test_the_life_of_a_job_is_counted(server, port):
    server.objects[JOB, "research", "digits"] = jobs.body()
    async with running(health=f"127.0.0.1:{port}"):
        before = await scraped(port)
        await until(lambda: len(server.all("v1/pods")) == 3)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
        await until(lambda: of_jobs(server))
        after = await scraped(port)
    assert of(after, "leader") == 1
    assert of(after, "jobs", state="Starting") == 1
    assert of(after, "reconcile_seconds_count", result="success") > of(
        before, "reconcile_seconds_count", result="success"
    )
    assert of(after, "place_wait_seconds_count") == of(before, "place_wait_seconds_count") + 1
    created = {"verb": "create", "resource": "pods", "code": "201"}
    assert of(after, "api_requests_total", **created) >= of(before, "api_requests_total", **created) + 3
    assert of(after, "api_requests_total", verb="list", resource="nodes", code="200") > 0
    assert of(after, "waiting_jobs") == of(after, "places_held") == 0
    assert after["process_resident_memory_bytes"]


def of_jobs(server) -> bool:
    return conditions(server).get("Running", {}).get("reason") == "Starting"


async def test_a_job_that_has_no_place_is_counted_as_waiting_and_a_deleted_one_not_at_all(server, port):
    big = {"resources": {"requests": {"cpu": "100"}}}
    server.objects[JOB, "research", "digits"] = jobs.body(jobs.group("worker", 1, container=big))
    async with running(health=f"127.0.0.1:{port}") as operator:
        await until(lambda: conditions(server).get("Admitted", {}).get("reason") == "NoPlace")
        found = await scraped(port)
        assert of(found, "jobs", state="NoPlace") == of(found, "waiting_jobs") == 1
        server.objects[JOB, "research", "digits"].delete()
        operator.queue.add(("research", "digits"))
        await until(lambda: not operator.queue.depth())
        await asyncio.sleep(0.05)
        found = await scraped(port)
        assert of(found, "jobs", state="NoPlace") == of(found, "waiting_jobs") == 0


@pytest.mark.parametrize(
    ("path", "resource", "named"),
    [
        ("/api/v1/pods", "pods", False),
        ("/api/v1/namespaces/research/pods", "pods", False),
        ("/api/v1/namespaces/research/pods/a-0", "pods", True),
        ("/api/v1/namespaces/research", "namespaces", True),
        ("/api/v1/namespaces", "namespaces", False),
        ("/apis/gradsieve.io/v1alpha1/namespaces/api/horovodjobs/apis/status", "horovodjobs/status", True),
        ("/behind/a/path/apis/coordination.k8s.io/v1/namespaces/s/leases/l", "leases", True),
        ("/version", "-", False),
        ("/apis", "-", False),
    ],
)
def test_a_request_is_counted_by_its_resource_and_never_by_a_name(path, resource, named):
    assert metrics._resource(path) == (resource, named)


async def test_what_does_not_arrive_is_counted_as_an_error(port):
    access = Access(f"http://127.0.0.1:{port}", None, dict)
    labels = {"verb": "get", "resource": "nodes", "code": "error"}
    before = metrics.REGISTRY.get_sample_value("gradsieve_operator_api_requests_total", labels) or 0.0
    async with Api(access) as api:
        with pytest.raises(ApiError):
            await api.get("/api/v1/nodes/n1")
    assert metrics.REGISTRY.get_sample_value("gradsieve_operator_api_requests_total", labels) == before + 1
