"""A running job's Secret that is lost or damaged is made again: its ranks go on, and everybody trusts it."""

import base64
import datetime as dt
import ssl
from dataclasses import replace

import horovod_jobs as jobs
import kmock as kmock_library
import pytest
from api_server import target
from handshakes import mount, shake_hands
from operator_in_memory import JOB, bind, conditions, running, until
from virtual_cluster import VirtualCluster

from gradsieve_hvd.control.tls import Authorities, client_context, server_context
from gradsieve_operator.certificates import issue
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.cluster.secrets import certificates_delivered
from gradsieve_operator.cluster.tls import context_of
from gradsieve_operator.decide import Pace
from gradsieve_operator.resources import certificate_secrets, held, read_secret, renewed_secrets
from gradsieve_operator.resources.held import MOST_AUTHORITIES

NOW = dt.datetime.now(dt.UTC)
HOSTS = ["worker-0", "worker-1"]
COORDINATOR, OPERATOR, WORKERS = NAMES = (
    "digits-coordinator-tls",
    "digits-operator-tls",
    "digits-workers-tls",
)


SOON = Pace(secrets=0.7)


def made() -> dict[str, dict]:
    secrets = certificate_secrets(jobs.job(), issue("digits", "research", HOSTS, NOW))
    return {secret["metadata"]["name"]: secret for secret in secrets}


def found(secrets: dict[str, dict]):
    return held(jobs.job(), {name: read_secret(jobs.job(), name, each) for name, each in secrets.items()})


def renewed(secrets: dict[str, dict], *lost: str) -> list[dict]:
    """Return the Secrets as they are written when ``lost`` are."""
    rest = {name: each for name, each in secrets.items() if name not in lost}
    further = issue("digits", "research", HOSTS, NOW)
    everyone = replace(further, authority=found(rest).bundle + further.authority)
    return renewed_secrets(jobs.job(), rest, lost, everyone, NOW)


def by_name(secrets: list[dict]) -> dict[str, dict]:
    return {secret["metadata"]["name"]: secret for secret in secrets}


@pytest.mark.parametrize("lost", [NAMES[:1], NAMES[1:2], NAMES[2:], NAMES[:2], NAMES[1:]])
def test_what_is_made_again_goes_with_what_was_left(lost):
    before = made()
    after = by_name(renewed(before, *lost))
    assert found(after).authority == found(before).authority
    assert (found(after).lost, found(after).certified) == ((), set(HOSTS))
    assert found(after).trust != ""


@pytest.mark.parametrize("lost", NAMES)
@pytest.mark.parametrize("written", [0, 1, 2])
def test_an_operator_that_is_killed_while_it_writes_begins_again_with_the_same(lost, written):
    before = made()
    rest = {name: each for name, each in before.items() if name != lost}
    half = {**rest, **by_name(renewed(before, lost)[:written])}
    assert (found(half).lost, found(half).authority) == ((lost,), found(before).authority)


def test_one_that_does_not_trust_the_others_is_lost():
    before = made()
    after = by_name(renewed(before, OPERATOR))
    assert found({**after, COORDINATOR: before[COORDINATOR]}).lost == (COORDINATOR,)


def test_however_often_one_is_lost_it_does_not_grow_for_ever():
    secrets = made()
    first = found(secrets).authority
    for _ in range(MOST_AUTHORITIES + 4):
        secrets = by_name(renewed(secrets, OPERATOR))
        assert found(secrets).lost == ()
    assert found(secrets).authority == first
    authorities = base64.b64decode(secrets[COORDINATOR]["data"]["ca.crt"])
    assert authorities.count(b"BEGIN CERTIFICATE") == MOST_AUTHORITIES


def test_a_coordinator_that_runs_lets_the_renewed_operator_in_once_it_has_heard_of_it(tmp_path):
    before = made()
    server = server_context(mount(tmp_path, before[COORDINATOR]))
    authorities = Authorities(server, tmp_path)
    after = by_name(renewed(before, OPERATOR))
    operator = context_of(after[OPERATOR])
    with pytest.raises(ssl.SSLError):
        shake_hands(operator, server, "coordinator")
    mount(tmp_path, after[COORDINATOR])
    assert authorities.refresh()
    assert not authorities.refresh()
    assert (("commonName", "operator"),) in shake_hands(operator, server, "coordinator")["subject"]
    worker = client_context(mount(tmp_path / "worker", before[WORKERS], "worker-0"))
    assert (("commonName", "worker-0"),) in shake_hands(worker, server, "coordinator")["subject"]


def test_an_agent_that_runs_knows_a_coordinator_whose_secret_was_lost(tmp_path):
    before = made()
    agent = Authorities(client_context(mount(tmp_path, before[WORKERS], "worker-1")), tmp_path)
    after = by_name(renewed(before, COORDINATOR))
    server = server_context(mount(tmp_path / "coordinator", after[COORDINATOR]))
    with pytest.raises(ssl.SSLError):
        shake_hands(agent.current(), server, "coordinator")
    mount(tmp_path, after[WORKERS], "worker-1")
    assert (("commonName", "worker-1"),) in shake_hands(agent.current(), server, "coordinator")["subject"]


@pytest.mark.parametrize("text", [b"", b"no certificate", b"\xff", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_damaged_file_of_authorities_takes_no_trust_away(tmp_path, text):
    before = made()
    server = server_context(mount(tmp_path, before[COORDINATOR]))
    authorities = Authorities(server, tmp_path)
    (tmp_path / "ca.crt").write_bytes(text)
    assert not authorities.refresh()
    shake_hands(context_of(before[OPERATOR]), server, "coordinator")
    (tmp_path / "ca.crt").unlink()
    assert not authorities.refresh()


def test_ranks_go_on_and_the_coordinator_s_node_is_told_to_look():
    it = VirtualCluster(jobs.body(), {"n0": 4}, length=10**6)
    it.live(10)
    assert it.progress.running
    pods, rosters = set(it.pods), list(it.rosters)
    it.lost = (OPERATOR,)
    it.live(3)
    assert it.lost == ()
    assert it.pods["digits-coordinator-1"].trust == it.trust
    assert "Secret digits-operator-tls" in next(
        each.degraded.message
        for each in it.said
        if each.degraded and each.degraded.reason == "CertificatesRenewed"
    )
    assert (set(it.pods), it.rosters, it.progress.restarts) == (pods, rosters, 0)


def test_a_worker_that_is_lost_together_with_the_workers_secret_is_replaced():
    it = VirtualCluster(jobs.body(), {"n0": 4}, length=30)
    it.live(10)
    it.lost, it.certified = (WORKERS,), frozenset()
    it.kill("digits-worker-1-1")
    it.settle()
    assert (it.progress.succeeded, it.progress.restarts) == (True, 1)


def test_the_operator_s_silence_is_not_the_coordinator_s_while_nodes_deliver_the_news():
    secret = by_name(renewed(made(), OPERATOR))[OPERATOR]
    memory = Memory(secrets={OPERATOR: secret})
    assert not certificates_delivered(jobs.job(), memory, NOW.timestamp() + 60)
    assert certificates_delivered(jobs.job(), memory, NOW.timestamp() + 121)
    assert certificates_delivered(jobs.job(), Memory(secrets=made()), NOW.timestamp())


async def placed(server) -> None:
    server.objects[JOB, "research", "digits"] = jobs.body()
    await until(lambda: len(server.all("v1/pods")) == 3)
    bind(server)
    await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")


def delete(server, name: str) -> None:
    server.objects["v1/secrets", "research", name].delete()


def corrupt(server, name: str) -> None:
    data = {"tls.key": base64.b64encode(b"no key").decode(), "worker-0.key": ""}
    server.objects["v1/secrets", "research", name].patch(
        {"metadata": {"resourceVersion": server.version()}, "data": data}
    )


def sound(server) -> bool:
    return found(server.all("v1/secrets")).lost == ()


def trusted(server) -> str | None:
    leader = server.all("v1/pods")["digits-coordinator-1"]
    return leader["metadata"]["annotations"].get("gradsieve.io/trust")


@pytest.mark.parametrize(("harm", "name"), [*((delete, name) for name in NAMES), (corrupt, OPERATOR)])
async def test_a_started_job_s_secret_comes_again_and_its_pods_stay(server, name, harm):
    async with running(pace=SOON) as operator:
        await placed(server)
        before = {pod["metadata"]["uid"] for pod in server.all("v1/pods").values()}
        harm(server, name)
        harmed = sound(server)
        assert not harmed
        await until(lambda: sound(server))
        trust = found(server.all("v1/secrets")).trust
        await until(lambda: trusted(server) == trust)
        assert {pod["metadata"]["uid"] for pod in server.all("v1/pods").values()} == before
        assert server.all(JOB)["digits"]["status"]["restartCount"] == 0
        server.objects[JOB, "research", "digits"].patch({"spec": {"suspend": True}})
        operator.queue.add(("research", "digits"))
        await until(lambda: not server.all("v1/pods"))


async def test_a_secret_of_somebody_else_s_is_not_taken_and_named(server):
    async with running(pace=SOON):
        await placed(server)
        delete(server, OPERATOR)
        about = {"name": OPERATOR, "namespace": "research", "uid": "u", "resourceVersion": "1000"}
        theirs = {"metadata": about, "data": {"a": "Yg=="}}
        server.objects["v1/secrets", "research", OPERATOR] = theirs
        await until(lambda: conditions(server)["Degraded"]["reason"] == "Refused")
        assert f"Secret {OPERATOR} is there already" in conditions(server)["Degraded"]["message"]
    assert server.all("v1/secrets")[OPERATOR] == theirs
    assert len(server.all("v1/pods")) == 3


async def test_a_write_that_fails_in_between_is_made_up_for(server):
    failed = []

    def once(request):
        if target(request).endswith(OPERATOR) and len(failed) < 2:
            failed.append(target(request))
            raise kmock_library.KubernetesError(status=500, reason="InternalError", message="cut off")

    async with running(pace=SOON):
        await placed(server)
        delete(server, OPERATOR)
        server.before = once
        await until(lambda: len(failed) == 2 and sound(server))
    assert len(server.all("v1/pods")) == 3


async def test_a_pod_that_may_not_be_annotated_does_not_keep_the_rest_from_being_done(server):
    refused = []

    def no_annotations(request):
        if request.method.value.upper() == "PATCH" and "/pods/" in request.url.path:
            refused.append(request.url.path)
            raise kmock_library.KubernetesError(status=403, reason="Forbidden", message="pods are sealed")

    async with running(pace=SOON) as operator:
        await placed(server)
        server.before = no_annotations
        delete(server, OPERATOR)
        await until(lambda: bool(refused) and sound(server))
        server.objects[JOB, "research", "digits"].patch({"spec": {"suspend": True}})
        operator.queue.add(("research", "digits"))
        await until(lambda: not server.all("v1/pods"))
    assert "ReconcileError" not in conditions(server)
