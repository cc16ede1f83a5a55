"""An operator that is killed at any write, or stays dead for a minute, changes nothing about the end."""

import json
import re
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress

import pytest
from cluster.errors import ClusterError
from cutting_proxy import Cut, CuttingProxy, Write
from horovod_job import idle_program
from job_lives import Lives, lives

pytestmark = pytest.mark.timeout(600)
REPORTS = {f"report {what}" for what in ("conditions", "startTime", "restartCount", "completionTime")}
DELICATE = {
    *REPORTS,
    "record roster",
    "record plan",
    *(f"{method} pods {which}" for method in ("POST", "DELETE") for which in ("coordinator", "worker")),
    "DELETE horovodjobs",
}
"""Another write belongs to each of them, so that the operator is also killed before it."""
OTHERS = {
    "event",
    *(f"POST {kind}" for kind in ("configmaps", "networkpolicies", "serviceaccounts", "services")),
    *(f"POST secrets {whose}" for whose in ("coordinator", "operator", "worker")),
}
AT_TIMES = {"record restarts", "record started", "record generation", "report nothing new"}
"""What becomes part of another write where the operator sees two changes at one look."""
DEAD_SECONDS = 60.0


class Reconcile:
    """Tells the kinds of writes of a reconcile apart, one after the other."""

    def __init__(self) -> None:
        self._records: dict[str, dict] = {}

    def kind(self, write: Write) -> str:
        """Return what a write is for, whatever job it is of."""
        if write.path.endswith("/status"):
            return self._status(write)
        if write.path.endswith("/events"):
            return "event"
        creates = write.method == "POST"
        kind = write.path.split("/")[-1 if creates else -2]
        what = re.search(r"-(coordinator|worker|operator)", write.name)
        return f"{write.method} {kind} {what[1] if what else ''}".strip()

    def arrived(self, write: Write) -> None:
        """Take note of what a job's status has from now on."""
        if write.path.endswith("/status"):
            self._records[write.path] = self._record(write)

    def _record(self, write: Write) -> dict:
        said = write.body["status"].get("record")
        return self._records.get(write.path, {}) if said is None else json.loads(said)

    def _status(self, write: Write) -> str:
        status, before, after = write.body["status"], self._records.get(write.path, {}), self._record(write)
        changed = {name for name, value in after.items() if before.get(name) != value}
        # The first plan is recorded with a roster. A later one has been told by then.
        if "planGeneration" in changed and "roster" not in changed:
            return "record plan"
        if not set(status) <= {"record", "progress"}:
            times = [name for name in ("completionTime", "startTime", "restartCount") if name in status]
            return f"report {times[0] if times else 'conditions'}"
        of_note = [name for name in ("restarts", "started", "roster", "generation") if name in changed]
        return f"record {of_note[0]}" if of_note else "report nothing new"


@pytest.fixture(scope="module")
def places(cluster):
    """Make namespaces with the idle program in them."""
    made = []

    def another() -> str:
        made.append(cluster.create_namespace(f"e2e-{uuid.uuid4().hex[:8]}"))
        cluster.apply(idle_program(made[-1]))
        return made[-1]

    yield another
    for name in made:
        cluster.delete_namespace(name)


@pytest.fixture(scope="module")
def undisturbed(cluster, operator, places, tmp_path_factory):
    """What is left of each life if nobody kills the operator, and the kinds of writes that it takes."""
    proxy, namespace = CuttingProxy(cluster, operator, tmp_path_factory.mktemp("calm")), places()
    with proxy.running():
        calm = Lives(cluster, namespace)
        calm.live(lives(cluster), 240)
        assert calm.look()("trained").plan() == (2, 20)
        cluster.retry(lambda: proxy.quiet(3.0), 60)
        # Those jobs are gone, and what they owned soon after them.
        cluster.retry(lambda: not any(calm.remains(name)["children"] for name in ("expired", "deleted")), 60)
        remains = {name: calm.remains(name) for name in lives(cluster)}
    cluster.kubectl("--namespace", namespace, "delete", "hvj", "--all", "--wait=false")
    reconcile, kinds = Reconcile(), set()
    for write in (each for each in proxy.writes if f"/namespaces/{namespace}/" in each.path):
        kinds.add(reconcile.kind(write))
        reconcile.arrived(write)
    return remains, kinds


def test_an_operator_killed_at_each_of_its_writes_leaves_what_it_leaves_undisturbed(
    cluster, operator, undisturbed, places, tmp_path, record_property
):
    """Seven jobs live side by side, while the operator is killed at each kind of write of its reconcile:
    before the answer arrives, and where that may matter also before the request does."""
    remains, kinds = undisturbed
    known = DELICATE | OTHERS
    assert known <= kinds <= known | AT_TIMES, "another kind of write: name it in this file"
    proxy, reconcile, namespace = CuttingProxy(cluster, operator, tmp_path), Reconcile(), places()
    asked = {(kind, Cut.AFTER) for kind in known} | {(kind, Cut.BEFORE) for kind in DELICATE}
    to_do = asked | {(kind, cut) for kind in AT_TIMES for cut in Cut}

    def choose(write: Write) -> Cut | None:
        if f"/namespaces/{namespace}/" not in write.path:
            return None
        kind = reconcile.kind(write)
        cut = next((cut for cut in Cut if (kind, cut) in to_do), None)
        to_do.discard((kind, cut))
        if cut is not Cut.BEFORE:
            reconcile.arrived(write)
        return cut

    proxy.choose = choose
    with proxy.running():
        chaos = Lives(cluster, namespace)
        chaos.live(lives(cluster), 420)
        assert chaos.look()("trained").plan() > (2, 20), "it was killed before it recorded the second"
        assert asked & to_do == set()
        cluster.retry(lambda: proxy.quiet(3.0), 90)
        # One that was killed late may not have begun to write.
        with suppress(ClusterError):
            cluster.retry(lambda: {name: chaos.remains(name) for name in remains} == remains, 60)
        assert {name: chaos.remains(name) for name in remains} == remains
    assert len(proxy.deaths) >= len(asked)
    record_property("kills", len(proxy.deaths))
    record_property("kinds_of_writes", len(kinds))
    made = Counter(write.name for write in proxy.writes if write.body and write.body.get("kind") == "Pod")
    assert max(made.values()) == 1, "a name of a pod was used again"


def test_an_operator_that_was_dead_for_a_minute_makes_up_for_it(cluster, operator, undisturbed, places):
    began = 0.0

    def dead_from_the_first_step_on(job, look):
        nonlocal began
        steps = lives(cluster)["replaced"](job, look)
        yield next(steps)
        operator.kill()
        began = time.monotonic()
        threading.Timer(DEAD_SECONDS, operator.start).start()
        yield from steps

    late = Lives(cluster, places())
    late.live({"replaced": dead_from_the_first_step_on}, 240)
    assert time.monotonic() - began > DEAD_SECONDS
    cluster.retry(lambda: late.remains("replaced") == undisturbed[0]["replaced"], 60)
