"""A job with the stock drop-in: the operator adapts what is sent to a link that becomes slow and recovers."""

import json

import pytest
from adapted_job import STOCK, follows, held, node_of, plan, training

pytestmark = [pytest.mark.timeout(600), pytest.mark.sole_training]
FAST, SLOW = "1000mbit", "20mbit"
FORGE = """
import http.client, json, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
folder = "/var/run/gradsieve/tls"
context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
for sample in json.load(sys.stdin):
    connection = http.client.HTTPSConnection(sys.argv[1], 7443, context=context, timeout=15)
    connection.request("POST", "/v1/telemetry", sample)
    print(connection.getresponse().status)
"""


def density(job):
    """Return the density that ranks are told and have acknowledged; 0 for none."""
    now = plan(job)
    return now["densityPermille"] if follows(now) else 0


def forged(generation, plan_generation):
    """Return samples of which two name ranks that are not there, some cannot be true, some are no samples."""
    sound = {"generation": generation, "step": 1, "stepSeconds": 0.1, "waitSeconds": 0.0, "time": 0}
    sound["appliedPlanGeneration"] = plan_generation
    rank = {"rank": 0, "host": "worker-0", "stepSeconds": 0.1, "waitSeconds": 0.1}
    return [
        json.dumps({**sound, "ranks": [{**rank, "rank": number} for number in range(4000)]}),
        json.dumps({**sound, "ranks": [{**rank, "rank": 1, "host": "worker-1", "stepSeconds": 9.0}]}),
        json.dumps({**sound, "stepSeconds": 1e300, "ranks": [rank]}),
        json.dumps({**sound, "stepSeconds": 0, "ranks": [{**rank, "stepSeconds": 0}]}),
        json.dumps({**sound, "appliedPlanGeneration": 10**15, "ranks": [{**rank, "waitSeconds": 1e17}]}),
        json.dumps({**sound, "modes": ["Adaptive"] * 8, "mode": "Adaptive"}),
        json.dumps({**sound, "generation": generation + 1}),
        json.dumps({**sound, "stepSeconds": -1}),
        json.dumps({**sound, "step": "many"}),
        '{"stepSeconds": NaN}',
        "[" * 5000,
    ]


def test_adaptation_sends_less_over_a_link_that_became_slow_and_more_again_when_it_recovers(
    cluster, operator, record_property
):
    """The coordinator is lost while ranks have not heard of their new plan; the program is the stock one."""
    with training(cluster, STOCK, densityPermille=100, minDensityPermille=5) as job:
        node = node_of(cluster, job, "worker-1")
        assert held(job) == ("True", "ProgramCannot")
        before = plan(job)["generation"]
        node.shape_link(SLOW)
        try:
            took = job.wait(lambda: plan(job)["generation"] > before, 150, "another plan for a slow link")
            record_property("seconds_to_another_plan", round(took, 1))
            slow = plan(job)
            assert (slow["mode"], slow["reason"]) == ("Synchronous", "LongDelay")
            assert "exchanging takes" in slow["evidence"]
            job.kubectl("delete", "pod", f"{job.name}-coordinator-1", "--grace-period=0", "--force")
            took = job.wait(lambda: 0 < density(job) < 100, 120, "ranks of another coordinator follow it")
            record_property("seconds_until_another_coordinator_has_told_it", round(took, 1))
        finally:
            node.shape_link(FAST)
        assert job.condition("AdaptationHeld")["reason"] == "ProgramCannot"
        took = job.wait(lambda: density(job) > slow["densityPermille"], 240, "more entries again")
        record_property("seconds_to_more_entries", round(took, 1))
        assert plan(job)["reason"] == "IdleLink"
        require_forgeries_change_nothing(job)


def require_forgeries_change_nothing(job):
    pods = job.pods()
    address = pods[f"{job.name}-coordinator-2"]["status"]["podIP"]
    samples = forged(2, plan(job)["generation"])
    run = ("exec", "-i", f"{job.name}-worker-0-1", "--", "python3", "-c", FORGE, address)
    answers = job.kubectl(*run, stdin=json.dumps(samples)).split()
    assert answers[:2] == ["403", "403"], answers
    assert set(answers[-5:]) <= {"400", "409", "413"}, answers
    job.wait(lambda: job.condition("TelemetryAvailable")["status"] == "True", 30, "telemetry as before")
    assert set(job.pods()) == set(pods)
    assert plan(job)["mode"] == "Synchronous"
    assert 5 <= plan(job)["densityPermille"] <= 100
    assert job.status()["restartCount"] == 1, "but for the coordinator that was lost"
