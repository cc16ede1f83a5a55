"""The operator may restrict which ServiceAccounts jobs use; a job that names another is refused aloud."""

import horovod_jobs as jobs
import pytest
from operator_in_memory import JOB, bind, conditions, running, until

from gradsieve_operator.cluster.options import Options
from gradsieve_operator.errors import SpecError
from gradsieve_operator.resources import worker
from gradsieve_operator.spec import AllowedAccounts

VARIABLE = "GRADSIEVE_ALLOWED_SERVICE_ACCOUNTS"


def group(**pod) -> dict:
    return jobs.group("worker", 1, pod=pod)


def allowed(names: str | None) -> AllowedAccounts:
    return AllowedAccounts.read(names)


@pytest.mark.parametrize(
    ("names", "account", "fits"),
    [
        pytest.param(None, "admin", True, id="not restricted"),
        pytest.param("", None, True, id="none named"),
        pytest.param("", "digits", True, id="the job's own"),
        pytest.param("", "admin", False, id="none allowed"),
        pytest.param("trainer", "admin", False, id="another"),
        pytest.param("trainer, reader", "reader", True, id="one of several"),
        pytest.param("research/reader", "reader", True, id="of this namespace"),
        pytest.param("other/reader", "reader", False, id="of another namespace"),
        pytest.param("other/reader", "other/reader", False, id="no way around by its name"),
    ],
)
@pytest.mark.parametrize("field", ["serviceAccountName", "serviceAccount"])
@pytest.mark.parametrize("where", ["spec.workerGroups[0]", "spec.launcher"])
def test_an_account_is_allowed_by_its_name(names, account, fits, field, where):
    named = {} if account is None else {field: account}
    launcher = {"template": {"spec": {"containers": [{"name": "c"}], **named}}}
    job = jobs.job(group(**named)) if "Groups" in where else jobs.job(group(), launcher=launcher)
    if fits:
        allowed(names).check(job)
    else:
        with pytest.raises(SpecError) as refused:
            allowed(names).check(job)
        assert refused.value.field == f"{where}.template.spec.serviceAccountName"
        assert VARIABLE in refused.value.problem


def test_what_is_refused_says_what_is_allowed_here_and_nothing_of_other_namespaces():
    with pytest.raises(SpecError, match=r"jobs use here \(reader, trainer\): leave it out") as refused:
        allowed("trainer,research/reader,secret-team/bot").check(jobs.job(group(serviceAccountName="admin")))
    assert "secret-team" not in str(refused.value)


@pytest.mark.parametrize("names", ["a b", "a/b/c", "*", "/a", "Admin"])
def test_a_list_that_cannot_be_read_keeps_the_operator_from_starting(names):
    with pytest.raises(SpecError, match=f"{VARIABLE}: has .*name or namespace/name"):
        Options.read({VARIABLE: names})


@pytest.mark.parametrize(
    ("spec", "used"),
    [
        ({}, "digits"),
        ({"serviceAccountName": "trainer"}, "trainer"),
        ({"serviceAccount": "trainer"}, "trainer"),
        ({"serviceAccountName": "", "serviceAccount": "trainer"}, "trainer"),
        ({"serviceAccountName": ""}, "digits"),
        ({"serviceAccountName": "trainer", "serviceAccount": "admin"}, "trainer"),
    ],
)
def test_a_pod_runs_as_the_account_that_is_checked(spec, used):
    job = jobs.job(group(**spec))
    pod = worker(job, job.groups[0], 0, generation=1, authority="ca", node=None)
    assert pod["spec"]["serviceAccountName"] == used
    assert "serviceAccount" not in pod["spec"]


async def test_a_job_that_names_another_account_gets_no_pod_and_says_which_it_may_name(server):
    server.objects[JOB, "research", "digits"] = jobs.body(group(serviceAccountName="admin"))
    async with running(accounts=allowed("trainer")) as operator:
        await until(lambda: conditions(server).get("Admitted", {}).get("reason") == "InvalidSpec")
        said = conditions(server)["Admitted"]["message"]
        assert said.startswith("spec.workerGroups[0].template.spec.serviceAccountName: 'admin' is not among")
        assert server.all("v1/pods") == server.all("v1/secrets") == {}
        changed = {"spec": {"workerGroups": [group(serviceAccountName="trainer")]}}
        server.objects[JOB, "research", "digits"].patch(changed)
        operator.queue.add(("research", "digits"))
        await until(lambda: len(server.all("v1/pods")) == 2)


async def test_a_job_that_has_started_goes_on_when_its_account_is_not_allowed_any_more(server):
    server.objects[JOB, "research", "digits"] = jobs.body(group(serviceAccountName="admin"))
    async with running():
        await until(lambda: len(server.all("v1/pods")) == 2)
        bind(server)
        await until(lambda: conditions(server)["Admitted"]["reason"] == "Placed")
    async with running(accounts=allowed("")):
        await until(lambda: conditions(server)["Degraded"]["reason"] == "InvalidSpec")
    assert len(server.all("v1/pods")) == 2
    assert server.all(JOB)["digits"]["status"]["desired"] == 1
