"""The cluster of the scale benchmark is as full, and its waiting jobs are as different, as it says."""

import pytest
from scale import manifests
from scale.sizes import SHAPES, Sizes

from gradsieve_operator import decide
from gradsieve_operator.placement import Assignment, Cluster, Gang, Load, Node, Shortage, plan, plan_queue
from gradsieve_operator.placement.rooms import Rooms
from gradsieve_operator.spec import HorovodJob


def sizes(jobs):
    return Sizes(jobs, jobs // 4, jobs // 2, jobs * 10, minutes=5, rate=20, steady_minutes=2)


def gang(body):
    body["metadata"]["uid"] = "0"
    job = HorovodJob.parse(body)
    found = decide.first_pods(job, decide.Progress())
    scheduling = job.scheduling
    return Gang.of(
        f"{job.namespace}/{job.name}",
        found,
        gpu_products=scheduling.gpu_products,
        placement=scheduling.placement,
    )


def ready(node):
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return Node.parse(node)


def cluster(size):
    loads = (Load.parse(pod) for pod in manifests.foreign_pods(size))
    return Cluster.of(map(ready, manifests.nodes(size)), [load for load in loads if load is not None])


@pytest.mark.parametrize("jobs", [10, 100, 1000])
def test_jobs_and_others_fill_95_percent_of_the_gpus(jobs):
    size = sizes(jobs)
    size.check()

    assert size.foreign_gpus + 3 * jobs == pytest.approx(0.95 * 8 * size.nodes, abs=1)
    assert size.foreign_pods + size.pods_per_job * jobs == size.pods


def test_a_cluster_whose_nodes_would_be_free_of_others_is_refused():
    with pytest.raises(ValueError, match="at least one on each node"):
        Sizes(100, 25, 25, 1000, minutes=5, rate=20, steady_minutes=2).check()


def test_all_running_jobs_fit():
    size = sizes(100)
    gangs = [gang(manifests.running_job(index)) for index in range(size.jobs)]

    found = plan_queue(cluster(size), gangs)

    assert all(isinstance(each, Assignment) for each in found.values())


def test_no_waiting_job_fits_even_without_any_that_runs():
    size = sizes(100)
    empty = cluster(size)

    found = [plan(empty, gang(manifests.waiting_job(index, size))) for index in range(SHAPES)]

    assert all(isinstance(each, Shortage) for each in found)


def test_waiting_jobs_have_sixty_shapes_of_one_to_four_groups():
    size = sizes(1000)
    rooms = Rooms(cluster(size))
    jobs = [manifests.waiting_job(index, size) for index in range(size.waiting)]

    assert {len(job["spec"]["workerGroups"]) for job in jobs} == {1, 2, 3, 4}
    assert len({str(rooms.kind(gang(job))) for job in jobs}) == SHAPES
