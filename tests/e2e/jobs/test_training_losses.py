"""A worker's pod is deleted in mid-training: the sample jobs go on from their last commit."""

import time
from dataclasses import dataclass

import pytest
from rank_logs import Stretch, setbacks, stretches
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


def trains(found: dict[str, list[Stretch]], ranks: int, steps: int, nth: int) -> bool:
    """Whether ``ranks`` ranks have taken ``steps`` steps after the ``nth`` start of theirs or a later one."""
    going = [one[-1] for one in found.values() if len(one) >= nth]
    return len([one for one in going if one.ranks == ranks and len(one.steps) >= steps]) == ranks


@dataclass(frozen=True)
class Deleted:
    """moment: when it was, in seconds since the epoch. starts: of the ranks of each host before.
    restarts: of the job before. replacement: the pod's.

    None are expected before, but an agent that the machine lets stand still for 15 s is one, and is not what
    is looked at here.
    """

    moment: float
    starts: dict[str, int]
    restarts: int
    replacement: str

    def since(self, job: SampleJob) -> dict[str, list[Stretch]]:
        """Return what each host's ranks did from their last start before the deletion on."""
        return {host: one[self.starts.get(host, 1) - 1 :] for host, one in history(job).items()}


def delete_in_mid_training(cluster, job: SampleJob, worker: str, record_property) -> Deleted:
    """Delete a worker's pod once there are two commits; returns once it is replaced."""
    job.wait(lambda: trains(history(job), 4, 2 * INTERVAL + 5, 1), 300, "trains")
    restarts = job.status()["restartCount"]
    starts = {host: len(one) for host, one in history(job).items()}
    (pod,) = (name for name in job.pods() if name.startswith(f"{worker}-"))
    replacement = f"{worker}-{restarts + 2}"  # the first generation is 1
    record_property("restarts_before", restarts)
    with sightings(cluster, job) as seen:
        deleted = time.time()
        job.kubectl("delete", "pod", pod, "--wait=false")
        job.wait(lambda: replacement in job.pods(), 60, "replaced")
    seconds = seen.replacement_seconds(restarts + 1, replacement)
    record_property("seconds_from_decision_to_pod", round(seconds, 2))
    assert seconds <= REPLACED_SECONDS
    return Deleted(deleted, starts, restarts, replacement)


def test_mpi_ranks_resume_from_the_last_commit_on_survivors_and_replacement(
    cluster, operator, namespace, record_property
):
    cluster.nodes[0].label_gpu(A100, 4, 81920)
    cluster.nodes[1].label_gpu(T4, 4, 15360)
    job = SampleJob(cluster, namespace, "digits")
    job.apply_sample(**FOR_EVER)
    deleted = delete_in_mid_training(cluster, job, "digits-t4-0", record_property)
    job.wait(lambda: trains(deleted.since(job), 4, 2, 2), 300, "resumed")
    found = deleted.since(job)
    assert sorted(found) == ["a100-0", "a100-1", "t4-0", "t4-1"]
    again = max(one[1].moments[0] for one in found.values())
    record_property("seconds_to_next_step", round(again - deleted.moment, 2))
    lost = {host: setbacks(one) for host, one in found.items()}
    record_property("steps_lost", lost)
    assert all(len(each) == 1 and each[0] <= INTERVAL for each in lost.values()), lost
    # Of some ranks what they said last may be lost with them.
    assert max(each[0] for each in lost.values()) >= 0, lost
    assert {one[1].first % INTERVAL for one in found.values()} == {0}
    assert all(one[1].steps[0] == one[1].first + 1 for one in found.values())
    workers = {"digits-a100-0", "digits-a100-1", "digits-t4-1"}
    assert {f"{worker}-1" for worker in workers} | {deleted.replacement} <= set(job.pods())
    assert job.status()["restartCount"] == deleted.restarts + 1


def test_gloo_ranks_go_on_in_place_and_take_the_replacement_in(cluster, operator, namespace, record_property):
    job = SampleJob(cluster, namespace, "elastic")
    job.kubectl("apply", "-f", str(SAMPLES / "policy.yaml"))
    # On a busy machine a newcomer may import torch for longer than the 30 s that Horovod gives it.
    job.apply_sample(**FOR_EVER, HOROVOD_GLOO_TIMEOUT_SECONDS="90")
    deleted = delete_in_mid_training(cluster, job, "elastic-workers-3", record_property)
    started = job.log().count("starting 4 ranks (Gloo)")
    job.wait(lambda: trains(deleted.since(job), 4, 2, 2), 400, "four ranks again")
    found = deleted.since(job)
    lost = {host: setbacks(one) for host, one in found.items()}
    record_property("steps_lost", lost)
    newcomer = found.pop("workers-3")[-1]
    # No lower limit for it: the others may have gone on before it was there.
    assert all(steps <= INTERVAL for steps in lost.pop("workers-3")), lost
    assert all(0 <= steps <= INTERVAL for each in lost.values() for steps in each), lost
    assert sorted(found) == ["workers-0", "workers-1", "workers-2"]
    next_step = min(stretch.moments[0] for one in found.values() for stretch in one[1:] if stretch.moments)
    record_property("seconds_to_next_step", round(next_step - deleted.moment, 2))
    record_property("seconds_to_four_ranks", round(newcomer.moments[0] - deleted.moment, 2))
    # In place: it is the same processes that go on, older by the time that has passed.
    assert all(one[-1].age - one[0].age > one[0].moments[-1] - one[0].moments[0] for one in found.values())
    assert job.log().count("starting 4 ranks (Gloo)") == started
    assert job.status()["restartCount"] == deleted.restarts + 1
