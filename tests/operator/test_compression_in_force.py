"""What a running job's ranks compress by, while its author and its policy's change their minds."""

import json

import horovod_jobs as jobs
import pytest
from virtual_cluster import VirtualCluster

from gradsieve_operator import decide as d
from gradsieve_operator.spec import Compression
from gradsieve_operator.status import job_status, recall, record

LAPLACE = Compression(algorithm="Laplace", density_permille=10)
LAYERED = Compression(algorithm="Layered", min_density_permille=10, max_density_permille=20)


def training(policy, *groups, **compression):
    """Return a job that trains by ``policy``, with fields of its own laid over it."""
    asked = {"policyRef": {"name": "shared"}, **compression}
    it = VirtualCluster(
        jobs.body(*groups, compression=asked, runPolicy={"backoffLimit": 9}), {"n0": 4}, length=10**6
    )
    it.policy = policy
    return run_until(it, lambda it: it.progress.running)


def run_until(it, holds):
    for _ in range(200):
        it.operate()
        it.tick(0.5)
        if holds(it):
            return it
    raise AssertionError(it.said[-1])


def run(it, seconds=10):
    for _ in range(2 * seconds):
        it.operate()
        it.tick(0.5)


def lose_a_worker(it):
    before = len(it.rosters)
    it.kill(max(name for name in it.pods if "worker-1" in name))
    run_until(it, lambda it: len(it.rosters) > before and it.progress.running)


def sent(it, kind):
    return [action for said in it.said for action in said.actions if isinstance(action, kind)]


def started_with(it):
    """Return the compression that the last roster starts ranks with."""
    environment = sent(it, d.PutRoster)[-1].roster["env"]
    return json.loads(environment.get("GRADSIEVE_COMPRESSION", "{}"))


def plans(it):
    """Return the densities of each plan that was sent."""
    return [sent.plan.get("densityPermille") for sent in sent(it, d.PutPlan)]


def said(it):
    world = it.world()
    found = job_status(world, it.operate(), {}, {})["conditions"]
    return next(each for each in found if each["type"] == "PlanConverged")


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        pytest.param(Compression(algorithm="FP16"), "algorithm FP16", id="another algorithm"),
        pytest.param(
            Compression(density_permille=20), "their program's own algorithm", id="no algorithm any more"
        ),
    ],
)
def test_a_running_job_keeps_its_algorithm_whatever_its_policy_says_now(policy, named):
    it = training(LAPLACE)
    it.policy = policy
    lose_a_worker(it)
    assert started_with(it) == LAPLACE.manifest()
    assert plans(it) == [10]
    condition = said(it)
    assert (condition["status"], condition["reason"]) == ("False", "AlgorithmKept")
    assert condition["message"] == (
        f"ranks go on with algorithm Laplace and its densities, not with {named}: "
        "suspend the job to change that"
    )


def test_a_job_that_left_its_algorithm_to_the_program_goes_on_so_too():
    it = VirtualCluster(jobs.body(), {"n0": 4}, length=10**6)
    run_until(it, lambda it: it.progress.running)
    it.body["spec"]["compression"] = {"policyRef": {"name": "shared"}}
    it.policy = LAPLACE
    lose_a_worker(it)
    assert started_with(it) == {}
    assert plans(it) == []
    assert "with their program's own algorithm and its densities" in said(it)["message"]


def test_new_certificates_are_no_reason_to_change_the_algorithm():
    it = training(LAPLACE)
    it.policy = Compression(algorithm="TopK", density_permille=20)
    it.authority, it.certified = None, frozenset()
    run_until(it, lambda it: len(it.made) == 6 and it.progress.running)
    assert started_with(it) == LAPLACE.manifest()


def test_a_suspended_job_starts_with_what_it_asks_for_then():
    it = training(LAPLACE)
    it.body["spec"]["suspend"] = True
    run_until(it, lambda it: not it.pods)
    it.policy = Compression(algorithm="TopK", density_permille=20)
    it.body["spec"]["suspend"] = False
    run_until(it, lambda it: it.progress.running)
    assert started_with(it) == it.policy.manifest()
    assert said(it)["reason"] == "Pending"


def test_a_waiting_job_follows_its_policy_until_it_starts():
    it = VirtualCluster(jobs.body(compression={"policyRef": {"name": "shared"}}), {"n0": 4}, length=10**6)
    it.foreign, it.policy = {"n0": 4}, LAPLACE
    run(it)
    it.foreign, it.policy = {}, Compression(algorithm="TopK", density_permille=20)
    run_until(it, lambda it: it.progress.running)
    assert started_with(it) == it.policy.manifest()


def test_a_running_job_whose_policy_is_away_goes_on_with_what_it_has_under_another_operator_too():
    it = training(LAPLACE)
    it.policy, it.unresolved = None, "there is no CompressionPolicy 'shared' here"
    it.progress = recall(record(it.progress))
    lose_a_worker(it)
    assert started_with(it) == LAPLACE.manifest()
    assert plans(it) == [10]
    condition = said(it)
    assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
    assert condition["message"].startswith(
        "there is no CompressionPolicy 'shared' here; until that is mended"
    )


def test_densities_change_while_ranks_run():
    it = training(LAPLACE)
    it.policy = Compression(algorithm="Laplace", density_permille=20)
    run(it)
    assert plans(it) == [10, 20]
    lose_a_worker(it)
    assert started_with(it) == it.policy.manifest()


def test_a_density_that_is_removed_stays_until_the_job_is_suspended():
    it = training(Compression(), densityPermille=10)
    it.body["spec"]["compression"].pop("densityPermille")
    lose_a_worker(it)
    assert started_with(it) == {"densityPermille": 10}
    assert plans(it) == [10]
    condition = said(it)
    assert (condition["status"], condition["reason"]) == ("False", "DensitiesKept")
    assert condition["message"] == (
        "not given any more: densityPermille 10; ranks keep that until the job is suspended"
    )
    it.body["spec"]["suspend"] = True
    run_until(it, lambda it: not it.pods)
    it.body["spec"]["suspend"] = False
    run_until(it, lambda it: it.progress.running)
    assert started_with(it) == {}
    assert said(it)["reason"] == "NoPlan"


def test_limits_that_are_removed_stay_beside_a_new_density_that_goes_with_them():
    it = training(LAYERED)
    it.policy = Compression(algorithm="Layered", density_permille=15)
    run(it)
    assert sent(it, d.PutPlan)[-1].plan == {"generation": 2, **LAYERED.manifest(), "densityPermille": 15}
    assert "minDensityPermille 10, maxDensityPermille 20" in said(it)["message"]


def test_a_new_density_that_contradicts_removed_limits_changes_nothing():
    it = training(LAYERED)
    it.policy = Compression(algorithm="Layered", density_permille=50)
    run(it)
    assert len(sent(it, d.PutPlan)) == 1
    condition = said(it)
    assert (condition["status"], condition["reason"]) == ("False", "DensitiesKept")
    assert "what is removed stays until the job is suspended" in condition["message"]
