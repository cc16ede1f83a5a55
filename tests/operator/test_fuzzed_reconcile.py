"""Whatever is done to a job's children and status: it runs, says why not, or says ReconcileError."""

import contextlib
import copy
import os
from types import SimpleNamespace

import horovod_jobs as jobs
import jsonschema
import kmock as kmock_library
import pytest
from harm import harms
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manifests import json_schema
from operator_in_memory import JOB, conditions

from gradsieve_operator import contract
from gradsieve_operator.cluster import memory, secrets, trouble
from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.cache import Cache, Told
from gradsieve_operator.cluster.calls import Calls
from gradsieve_operator.cluster.events import Events
from gradsieve_operator.cluster.executor import Executor
from gradsieve_operator.cluster.fence import Fence
from gradsieve_operator.cluster.observer import Observer
from gradsieve_operator.cluster.options import Options
from gradsieve_operator.cluster.reconciler import Reconciler
from gradsieve_operator.resources import Neighbours
from gradsieve_operator.schema import job_definition

STATUS = job_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
VALIDATOR = jsonschema.Draft202012Validator(json_schema(STATUS))
MORE = os.environ.get("GRADSIEVE_FUZZ_EXAMPLES")
"""How many examples to draw at random; without it some are drawn, the same each time."""
KEY = ("research", "digits")
HOSTS = {"coordinator", "worker-0", "worker-1"}
SAYS_WHY = {"Refused", "InvalidSpec", "PodFailed", "SpecChanged", "CertificatesGone", "Waiting", "PlaceTaken"}
FOREIGN = [
    ("v1/pods", {"name": "digits-worker-0-5", "labels": {"gradsieve.io/job": "digits"}}),
    (
        "v1/pods",
        {"name": "digits-coordinator-3", "ownerReferences": [{"uid": "earlier", "kind": "HorovodJob"}]},
    ),
    ("v1/secrets", {"name": "digits-other-tls", "labels": {"gradsieve.io/job": "digits"}}),
]


class Place:
    """A namespace with one job, and an operator that looks at it when it is told to."""

    def __init__(self, server, api: Api, calls: Calls) -> None:
        self.server, self.now = server, 1.8e9
        self._api, self._calls = api, calls
        self.error: Exception | None = None
        self.restart()

    def restart(self) -> None:
        """Forget what the operator remembers."""
        options = Options()
        nobody = Told(lambda _: None, lambda _: None, lambda _: None)
        cache = self._cache = Cache(self._api, (), nobody)
        watched = Observer(
            self._api, cache, self._calls, None, Neighbours(), options.accounts, options.pace, lambda: False
        )
        executor, events = Executor(self._api, cache, None), Events(self._api)
        self._operator = Reconciler(self._api, cache, watched, executor, events, None)

    def objects(self) -> dict[tuple[str, str], dict]:
        """Return a copy of all there is but Events."""
        found = self.server.objects.items()
        return {
            (_spelled(kind), name): copy.deepcopy(each.raw)
            for (kind, where, name), each in found
            if where == "research" and not each.deleted and kind.plural != "events"
        }

    def put(self, objects: dict[tuple[str, str], dict]) -> None:
        """Have there be these, and nothing else."""
        for kind, where, name in [key for key in self.server.objects if key[1] == "research"]:
            del self.server.objects[kind, where, name]
        for (kind, name), each in objects.items():
            each["metadata"].update(namespace="research", resourceVersion=self.server.version())
            self.server.objects[kind, "research", name] = copy.deepcopy(each)

    async def live(self, rounds: int) -> None:
        """Look, and do as scheduler and kubelets do, again and again."""
        for _ in range(rounds):
            self.error = None
            # The server looks at all earlier requests each time.
            self.server._requests.clear()
            try:
                for each in self._cache.reflectors():
                    await each.load()
                await self._operator.reconcile(KEY)
            except Exception as error:  # noqa: BLE001 - what the queue does with it is the queue's
                self.error = error
            self.now += 11.0
            for (kind, name), pod in self.objects().items():
                if kind.endswith("pods") and not pod.get("status") and self.owned(pod):
                    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                    patch = {"spec": {"nodeName": "n1"}, "status": ready}
                    self.server.objects[kind, "research", name].patch(patch)

    def suspend(self) -> None:
        """Have the job suspended by its author."""
        version = {"resourceVersion": self.server.version()}
        job = self.server.objects[JOB, "research", "digits"]
        job.patch({"spec": {"suspend": True}, "metadata": version})

    def owned(self, pod: dict) -> bool:
        return any(owner["uid"] == "uid-of-digits" for owner in pod["metadata"].get("ownerReferences") or ())

    def pods(self) -> list[str]:
        """Return the hosts of the job's living pods."""
        found = [pod for pod in self.server.all("v1/pods").values() if self.owned(pod)]
        names = [contract.read_pod_name("digits", pod["metadata"]["name"]) for pod in found]
        return [
            name.host
            for name, pod in zip(names, found, strict=True)
            if name is not None and name.generation < 10**9 and not pod["metadata"].get("deletionTimestamp")
        ]

    def verdict(self) -> str:
        """Return what has become of the job; empty when it stands still without a word."""
        said = conditions(self.server)
        if said.get("ReconcileError", {}).get("status") == "True":
            return "ReconcileError"
        for kind in ("Failed", "Complete", "Degraded"):
            if said.get(kind, {}).get("status") == "True":
                return kind
        admitted = said.get("Admitted", {})
        if admitted.get("status") == "False" and admitted.get("reason") in SAYS_WHY:
            return str(admitted["reason"])
        return "runs" if admitted.get("status") == "True" and sorted(self.pods()) == sorted(HOSTS) else ""


@pytest.fixture
async def place(server, monkeypatch, port):
    monkeypatch.setattr(contract, "COORDINATOR_PORT", port)
    calls = Calls(Fence(), contextlib.nullcontext)
    async with Api(Access.find()) as api, calls:
        found = Place(server, api, calls)
        clock = SimpleNamespace(time=lambda: found.now, monotonic=lambda: found.now)
        monkeypatch.setattr(api.clock, "now", clock.time)
        for module in (memory, secrets, trouble):
            monkeypatch.setattr(module, "time", clock)

        def check(request):
            """Refuse what the schema refuses, as the API server does."""
            if request.url.path.endswith("/status"):
                status = {name: value for name, value in request.data["status"].items() if value is not None}
                for error in VALIDATOR.iter_errors(_without_nulls(status)):
                    raise kmock_library.KubernetesError(status=422, reason="Invalid", message=error.message)

        server.before = check
        found.states = await lives(found)
        yield found


def _spelled(kind) -> str:
    group = f"{kind.group}/" if kind.group else ""
    return f"{group}{kind.version}/{kind.plural}"


def _without_nulls(value):
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


async def lives(place: Place) -> list[dict]:
    """Return what there is when a job's pods are made, and when it runs."""
    job = jobs.body(scheduling={"gang": "None"}, runPolicy={"backoffLimit": 100})
    start = {(JOB, "digits"): job}
    for kind, about in FOREIGN:
        labelled = {"metadata": {**about, "uid": f"uid-{about['name']}"}, "data": {}}
        start[kind, about["name"]] = labelled
    place.put(start)
    await place.live(1)
    early = place.objects()
    await place.live(6)
    assert place.verdict() == "runs", (conditions(place.server), place.pods(), place.error)
    return [early, place.objects()]


def foreign(objects: dict) -> dict:
    """Return what does not belong to the job, without what changes with every write."""
    return {
        key: {**each, "metadata": {**each["metadata"], "resourceVersion": ""}}
        for key, each in objects.items()
        if not any(o.get("uid") == "uid-of-digits" for o in each["metadata"].get("ownerReferences") or ())
        and key[1] != "digits"
    }


@settings(
    max_examples=int(MORE or 30),
    derandomize=not MORE,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(which=st.integers(0, 1), harm=st.lists(harms(JOB, STATUS), min_size=1, max_size=3))
async def test_a_job_runs_says_why_not_or_says_reconcile_error_and_can_be_suspended(place, which, harm):
    objects = copy.deepcopy(place.states[which])
    for each in harm:
        each(objects)
    place.put(objects)
    place.restart()
    theirs = foreign(objects)
    await place.live(8)
    if not place.verdict():
        await place.live(30)
    assert place.verdict(), (conditions(place.server), place.pods(), place.error)
    assert place.error is None or place.verdict() == "ReconcileError", place.error
    assert foreign(place.objects()) == theirs
    ended = place.verdict() in ("Failed", "Complete")
    place.suspend()
    await place.live(3)
    assert ended or place.pods() == []
