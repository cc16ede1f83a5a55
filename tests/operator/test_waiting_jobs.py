"""Who waits for places gets what the last pass over all who wait has found, as long as that holds."""

import asyncio
import contextlib
from dataclasses import replace

import horovod_jobs as jobs
from hypothesis import given
from operator_in_memory import JOB, change_record, conditions, running, submit, until
from waiting_gangs import queues, worlds
from worlds import GPU, cluster, gang, gpu_node, load, node, pods

from gradsieve_operator import decide
from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.node_view import NodeView
from gradsieve_operator.cluster.planning import Planning
from gradsieve_operator.cluster.waiting import Waiting
from gradsieve_operator.placement import PATIENCE, Assignment, plan, still_fits
from gradsieve_operator.spec import HorovodJob

JOB_OF_TWO = HorovodJob.parse(
    jobs.body(jobs.group("worker", 2, container={"resources": {"requests": {"cpu": "3"}}}))
)
PROGRESS = decide.Progress(waiting_since=1.0)


def of(count: int, key: str = "team/job", **more):
    return gang(*pods(count, requests={GPU: 1}), key=key, **more)


def test_a_gang_that_has_changed_is_planned_again_and_one_whose_turn_has_changed_is_not():
    waiting = Waiting()
    assert waiting.join(of(1))
    assert not waiting.join(of(1, since=5.0, overtaken=2))
    assert waiting.join(of(2))
    assert waiting.join(of(2, priority=1))


def test_the_plan_for_what_a_gang_was_is_not_the_plan_for_what_it_is():
    waiting = Waiting()
    waiting.join(of(1))
    asked = dict(waiting.gangs)
    waiting.join(of(2))
    assert waiting.planned(asked, {"team/job": {"pod": "a"}}) == []
    assert waiting.plan(of(2)) is None
    assert waiting.plan(of(1)) is None


def test_a_place_is_news_and_that_something_else_is_missing_than_before_is_not():
    waiting = Waiting()
    waiting.join(of(1))
    asked = dict(waiting.gangs)
    assert waiting.planned(asked, {"team/job": "full"}) == ["team/job"]
    assert waiting.planned(asked, {"team/job": "full"}) == []
    assert waiting.planned(asked, {"team/job": "one is free"}) == []
    assert waiting.plan(of(1)) == "one is free"
    assert waiting.planned(asked, {"team/job": {"pod": "a"}}) == ["team/job"]
    assert waiting.planned(asked, {"team/job": {"pod": "a"}}) == ["team/job"]
    assert waiting.plan(of(1)) == {"pod": "a"}


def test_that_a_gang_finds_no_place_is_no_news_where_an_earlier_leader_has_said_so():
    waiting = Waiting()
    waiting.join(of(1))
    waiting.expect("team/job")
    asked = dict(waiting.gangs)
    assert waiting.planned(asked, {"team/job": "full"}) == []
    assert waiting.plan(of(1)) == "full"
    assert waiting.planned(asked, {"team/job": {"pod": "a"}}) == ["team/job"]
    waiting.pause("team/job")
    waiting.join(of(1))
    assert waiting.planned(dict(waiting.gangs), {"team/job": "full"}) == ["team/job"]


def test_who_waits_no_longer_has_no_plan_when_it_comes_back():
    waiting = Waiting()
    waiting.join(of(1))
    waiting.planned(dict(waiting.gangs), {"team/job": "full"})
    assert waiting.pause("team/job")
    assert not waiting.pause("team/job")
    assert waiting.join(of(1))
    assert waiting.plan(of(1)) is None


def test_being_overtaken_is_recorded_as_often_as_it_makes_a_difference():
    waiting = Waiting()
    waiting.join(of(4, "team/big", since=0.0))
    recorded = []
    for number in range(PATIENCE + 2):
        waiting.join(of(1, f"team/{number}", since=1.0))
        recorded.append(waiting.start(f"team/{number}"))
    assert recorded == [["team/big"]] * PATIENCE + [[]] * 2
    assert waiting.overtaken("team/big") == PATIENCE + 2


def test_the_same_two_jobs_are_counted_again_only_after_one_of_them_has_left():
    waiting = Waiting()

    def overtake():
        waiting.join(of(4, "team/big", since=0.0))
        waiting.join(of(1, "team/small", since=1.0))
        return waiting.start("team/small")

    assert overtake() == ["team/big"]
    assert overtake() == []
    waiting.leave("team/small")
    assert overtake() == ["team/big"]
    waiting.leave("team/big")
    assert overtake() == ["team/big"]


@given(worlds(), queues())
def test_a_plan_fits_where_it_was_made(world, waiting):
    for each in waiting:
        found = plan(world, each)
        if isinstance(found, Assignment):
            assert still_fits(world, each, found.nodes)


def test_a_plan_does_not_fit_where_another_has_taken_its_place():
    wanted = of(2)
    nodes = dict.fromkeys(wanted.shapes[0].pods, "a")
    assert still_fits(cluster(gpu_node("a", "T4", 2)), wanted, nodes)
    assert not still_fits(cluster(gpu_node("a", "T4", 2), loads=(load("a", gpu=1),)), wanted, nodes)
    assert not still_fits(cluster(gpu_node("a", "T4", 2, spec={"unschedulable": True})), wanted, nodes)
    assert not still_fits(cluster(gpu_node("b", "T4", 2)), wanted, nodes)


@contextlib.asynccontextmanager
async def planning_for(told: list):
    """A planner of a cluster with two nodes, which nobody watches."""
    planning = Planning(None, told.extend, told_of_jobs_pods=False)
    planning.nodes.kept.update(
        {f"/{name}": NodeView(node(name), decide.Node(ready=True, since=0.0)) for name in "ab"}
    )
    task = asyncio.create_task(planning.run())
    yield planning
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


WANTED = decide.Wanted(("worker-0", "worker-1"), generation=1, attempt=1)


async def test_a_plan_whose_places_were_taken_meanwhile_is_not_used():
    told = []
    async with planning_for(told) as planning:
        assert planning.places(JOB_OF_TWO, PROGRESS, WANTED).pending
        await until(lambda: told)
        found = planning.places(JOB_OF_TWO, PROGRESS, WANTED)
        assert set(found.nodes) == {
            pod["metadata"]["name"] for pod in decide.first_pods(JOB_OF_TWO, PROGRESS)
        }
        for name in "ab":
            planning.hold(f"x/{name}", load(name, cpu=8000))
        assert planning.places(JOB_OF_TWO, PROGRESS, WANTED).pending
        told.clear()
        await until(lambda: told)
        assert "worker needs 2 pods" in planning.places(JOB_OF_TWO, PROGRESS, WANTED).message


async def test_places_that_another_job_was_promised_are_taken():
    told = []
    async with planning_for(told) as planning:
        planning.places(JOB_OF_TWO, PROGRESS, WANTED)
        await until(lambda: told)
        other = replace(JOB_OF_TWO, name="other")
        planning.assume("research/other", planned_on("a", other) + planned_on("b", other))
        assert planning.places(JOB_OF_TWO, PROGRESS, WANTED).pending


async def test_a_worker_that_a_running_job_lacks_goes_where_nodes_are_as_they_are_by_now(server):
    lacks = decide.Wanted(("worker-0",), generation=1, attempt=1)
    started = replace(PROGRESS, waiting_since=None, started=1.0)
    async with Api(Access.find()) as api, asyncio.TaskGroup() as group:
        planning = Planning(api, lambda _: None, told_of_jobs_pods=False)
        tasks = [group.create_task(each.run()) for each in planning.reflectors()]
        await asyncio.gather(*(each.synced.wait() for each in planning.reflectors()))
        taken = []
        for _ in range(3):
            found = planning.places(JOB_OF_TWO, started, lacks).nodes
            [place] = [node for pod, node in found.items() if "worker-0" in pod]
            taken.append(place)
            server.objects["v1/nodes", None, place].patch({"spec": {"unschedulable": True}})
            await until(lambda place=place: planning.states()[place].troubles == ("cordoned",))
        assert sorted(taken) == ["n1", "n2", "n3"]
        assert "3 nodes are cordoned" in planning.places(JOB_OF_TWO, started, lacks).message
        for task in tasks:
            task.cancel()


def planned_on(name: str, job: HorovodJob) -> list:
    """Return two workers of a job that are pinned to a node, which they fill."""
    made = decide.first_pods(replace(job, name=f"{job.name}-{name}"), PROGRESS)[1:]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
    for each in made:
        each["spec"]["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        }
    return made


async def test_after_a_failover_nothing_waits_until_all_who_wait_were_looked_at(server):
    """They are looked at like all others, and whoever comes later cannot slip past them meanwhile."""
    for number in range(40):
        submit(server, f"huge-{number}", 100)
        server.objects[JOB, "research", f"huge-{number}"].patch({"status": {}})
        change_record(server, f"huge-{number}", waiting_since=1.0 + number)
    submit(server, "first", 3)
    server.objects[JOB, "research", "first"].patch({"status": {}})
    change_record(server, "first", waiting_since=0.5)
    looked = []

    def hear(request):
        if "/horovodjobs/" in request.url.path:
            looked.append(request.url.path)

    server.before = hear
    async with running() as operator:
        assert not looked, "it has started before it has looked at any of them"
        submit(server, "late", 3)
        operator.queue.add(("research", "late"))
        await until(lambda: len(server.all("v1/pods")) == 4)
        assert {name.partition("-")[0] for name in server.all("v1/pods")} == {"first"}
        await until(lambda: conditions(server, "late").get("Admitted", {}).get("reason") == "NoPlace")
