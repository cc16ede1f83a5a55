"""A worker's pod is deleted in mid-training: the sample jobs go on from their last commit."""

import time

import pytest
from rank_logs import setbacks, stretches
from sample_jobs import A100, SAMPLES, T4, SampleJob
from sightings import sightings

pytestmark = pytest.mark.timeout(900)
INTERVAL = 10
"""Steps from commit to commit in the sample program."""

REPLACED_SECONDS = 2.0
"""From decision to pod."""

FOR_EVER = {"EPOCHS": "10000", "STEP_SECONDS": "0.1", "LOG_STEPS": "1"}


def history(job: SampleJob):
    return stretches(job.log("--timestamps"))


def trains(job: SampleJob, ranks: int, steps: int, nth: int) -> bool:
    """Whether ``ranks`` ranks have taken ``steps`` steps after the ``nth`` start of theirs or a later one."""
    going = [found[-1] for found in history(job).values() if len(found) >= nth]
    return len([one for one in going if one.ranks == ranks and len(one.steps) >= steps]) == ranks


def delete_in_mid_training(cluster, job: SampleJob, pod: str, replacement: str, record_property) -> float:
    """Delete a pod once there are two commits; returns when, once there is ``replacement``."""
    job.wait(lambda: trains(job, 4, 2 * INTERVAL + 5, 1), 300, "trains")
    with sightings(cluster, job) as seen:
        deleted = time.time()
        job.kubectl("delete", "pod", pod, "--wait=false")
        job.wait(lambda: replacement in job.pods(), 60, "replaced")
    seconds = seen.replacement_seconds(1, replacement)
    record_property("seconds_from_decision_to_pod", round(seconds, 2))
    assert seconds <= REPLACED_SECONDS
    return deleted


def test_mpi_ranks_resume_from_the_last_commit_on_survivors_and_replacement(
    cluster, operator, namespace, record_property
):
    cluster.nodes[0].label_gpu(A100, 4, 81920)
    cluster.nodes[1].label_gpu(T4, 4, 15360)
    job = SampleJob(cluster, namespace, "digits")
    job.apply_sample(**FOR_EVER)
    deleted = delete_in_mid_training(cluster, job, "digits-t4-0-1", "digits-t4-0-2", record_property)
    job.wait(lambda: trains(job, 4, 2, 2), 300, "resumed")
    found = history(job)
    assert sorted(found) == ["a100-0", "a100-1", "t4-0", "t4-1"]
    again = max(one[1].moments[0] for one in found.values())
    record_property("seconds_to_next_step", round(again - deleted, 2))
    lost = {host: setbacks(one) for host, one in found.items()}
    record_property("steps_lost", lost)
    assert all(len(each) == 1 and each[0] <= INTERVAL for each in lost.values()), lost
    # Of some ranks what they said last may be lost with them.
    assert max(each[0] for each in lost.values()) >= 0, lost
    assert {one[1].first % INTERVAL for one in found.values()} == {0}
    assert all(one[1].steps[0] == one[1].first + 1 for one in found.values())
    workers = {"digits-a100-0-1", "digits-a100-1-1", "digits-t4-0-2", "digits-t4-1-1"}
    assert workers <= set(job.pods())
    assert job.status()["restartCount"] == 1


def test_gloo_ranks_go_on_in_place_and_take_the_replacement_in(cluster, operator, namespace, record_property):
    job = SampleJob(cluster, namespace, "elastic")
    job.kubectl("apply", "-f", str(SAMPLES / "policy.yaml"))
    # On a busy machine a newcomer may import torch for longer than the 30 s that Horovod gives it.
    job.apply_sample(**FOR_EVER, HOROVOD_GLOO_TIMEOUT_SECONDS="90")
    deleted = delete_in_mid_training(
        cluster, job, "elastic-workers-3-1", "elastic-workers-3-2", record_property
    )
    job.wait(lambda: trains(job, 4, 2, 2), 400, "four ranks again")
    found = history(job)
    lost = {host: setbacks(one) for host, one in found.items()}
    record_property("steps_lost", lost)
    newcomer = found.pop("workers-3")[-1]
    # No lower limit for it: the others may have gone on before it was there.
    assert all(steps <= INTERVAL for steps in lost.pop("workers-3")), lost
    assert all(0 <= steps <= INTERVAL for each in lost.values() for steps in each), lost
    assert sorted(found) == ["workers-0", "workers-1", "workers-2"]
    next_step = min(stretch.moments[0] for one in found.values() for stretch in one[1:] if stretch.moments)
    record_property("seconds_to_next_step", round(next_step - deleted, 2))
    record_property("seconds_to_four_ranks", round(newcomer.moments[0] - deleted, 2))
    # In place: it is the same processes that go on, older by the time that has passed.
    assert all(one[-1].age - one[0].age > one[0].moments[-1] - one[0].moments[0] for one in found.values())
    assert job.log().count("starting 4 ranks (Gloo)") == 1
    assert job.status()["restartCount"] == 1
