"""A coordinator that an operator steers: rosters, losses, fencing, restarts, plan, telemetry."""

import json
import signal
import time

import pytest
from control_job import roster
from spread_jobs import side_by_side

pytestmark = pytest.mark.timeout(280)

# No MPI: what matters is who runs where, and when.
PROGRAM = """
import os, time
names = ("GRADSIEVE_JOB_GENERATION", "GREETING", "GRADSIEVE_HOST")
print("up", *(os.environ[name] for name in names), flush=True)
time.sleep(1000)
"""
SLEEP = ["python", "-c", PROGRAM]
UIDS = {"h0": "uid-0", "h1": "uid-1"}


def pod(job, host, uid, generation=1, **variables):
    """Start an agent as a pod would, by its environment alone."""
    return job.gradsieve(
        "agent",
        host=host,
        GRADSIEVE_TLS_DIR=str(job.certificates / host),
        GRADSIEVE_COORDINATOR=f"https://{job.address}:{job.port}",
        GRADSIEVE_HOST=host,
        GRADSIEVE_WORKER_GROUP=host,
        GRADSIEVE_SLOTS="1",
        GRADSIEVE_POD_UID=uid,
        GRADSIEVE_GENERATION=str(generation),
        **variables,
    )


def put_roster(job, generation, hosts, command=SLEEP, **more):
    body = roster(generation, command, hosts, env={"GREETING": "hello"}, **more)
    return job.call("PUT", "/v1/roster", body)


def start(job, hosts=UIDS, command=SLEEP):
    agents = {host: pod(job, host, uid) for host, uid in hosts.items()}
    coordinator = job.coordinator()
    coordinator.wait_for("listening", times=2)
    assert put_roster(job, 1, hosts, command)[0] == 200
    coordinator.wait_for("up 1 hello", times=len(hosts))
    return coordinator, agents


def test_a_job_from_roster_to_stop_to_success(job):
    coordinator, _ = start(job)
    status = job.wait_for("Running")
    assert (status["generation"], status["missing"], status["exitCode"]) == (1, [], None)
    assert status["registered"] == [
        {"host": host, "podUID": uid, "connected": True, "admitted": True} for host, uid in UIDS.items()
    ]
    assert sorted(coordinator.lines("[")) == ["[0] up 1 hello h0", "[1] up 1 hello h1"]

    assert put_roster(job, 1, UIDS)[0] == 200, "the same roster again changes nothing"
    code, said = put_roster(job, 0, UIDS)
    assert (code, "generation 1 is in force" in said["error"]) == (409, True)

    job.renew_operator()
    assert job.wait_for("Running")["generation"] == 1

    assert job.call("POST", "/v1/stop", {"reason": "suspended"}) == (200, {"state": "Waiting"})
    assert job.status()["message"] == "stopped: suspended"
    assert put_roster(job, 2, UIDS, command=["sh", "-c", "exit 0"])[0] == 200
    job.wait_for("Succeeded")
    assert coordinator.wait(60) == 0
    assert "Succeeded" in coordinator.text()


def test_the_end_is_told_to_the_operator_before_the_coordinator_goes(job):
    pod(job, "h0", "uid-0")
    coordinator = job.coordinator()
    coordinator.wait_for("listening", times=2)
    put_roster(job, 1, {"h0": "uid-0"}, command=["sh", "-c", "exit 7"])
    status = job.wait_for("Failed")
    assert (status["exitCode"], status["message"]) == (7, "mpirun exited with status 7")
    assert coordinator.wait(30) == 7


def test_a_lost_host_ends_the_ranks_and_a_new_generation_starts_on_survivors_and_successor(job):
    coordinator, agents = start(job)
    agents["h1"].signal(signal.SIGKILL)
    status = job.wait_for("Lost")
    assert (status["lostHosts"], status["missing"]) == (["h1"], ["h1"])
    assert status["missingSeconds"].keys() == {"h1"}
    assert 0.0 <= status["missingSeconds"]["h1"] < 10.0
    assert job.left_over_ranks(host="h0") == []
    # Nobody is left there who could tell when; in a pod the kernel ends them together with the agent.
    until = time.monotonic() + 10
    while job.left_over_ranks():
        assert time.monotonic() < until, "ranks outlive their agent"
        time.sleep(0.05)

    successor = pod(job, "h1", "uid-1b", generation=2)
    successor.wait_for("registered")
    assert put_roster(job, 2, {"h0": "uid-0", "h1": "uid-1b"})[0] == 200
    coordinator.wait_for("up 2 hello", times=2)
    assert agents["h0"].process.poll() is None, "the survivor's agent was kept"

    # The lost pod comes back from wherever it was.
    returned = pod(job, "h1", "uid-1", generation=1)
    assert returned.wait(30) == 17
    assert "fenced" in returned.text()
    assert job.wait_for("Running")["missing"] == []


def test_an_incarnation_that_the_roster_drops_ends_its_ranks_and_itself(job):
    coordinator, agents = start(job)
    successor = pod(job, "h1", "uid-1b", generation=2)
    successor.wait_for("registered")
    assert put_roster(job, 2, {"h0": "uid-0", "h1": "uid-1b"})[0] == 200
    coordinator.wait_for("up 2 hello", times=2)
    assert job.left_over_ranks(generation="1") == [], "they ended before their successors began"
    assert agents["h1"].wait(30) == 17
    job.wait_for("Running")


def test_agents_dial_again_when_the_coordinator_was_killed(job):
    coordinator, agents = start(job)
    coordinator.signal(signal.SIGKILL)
    coordinator.wait()
    second = job.coordinator()
    second.wait_for("listening", times=2)
    job.wait_for(lambda status: len(status["registered"]) == 2)
    assert put_roster(job, 2, UIDS)[0] == 200
    second.wait_for("up 2 hello", times=2)
    assert job.left_over_ranks(generation="1") == []
    assert [agent.process.poll() for agent in agents.values()] == [None, None]


@side_by_side
def test_an_agent_that_is_cut_off_and_returns_is_fenced_and_ends_its_ranks(job):
    coordinator, agents = start(job)
    job.network.set_link(1, up=False)
    # mpirun's own connection to the daemon is as dead; what notices is the heartbeat.
    status = job.wait_for("Lost", 90)
    assert status["lostHosts"] == ["h1"]
    successor = {"h0": "uid-0", "h1": "uid-1b"}
    assert put_roster(job, 2, successor)[0] == 200
    job.network.set_link(1, up=True)
    assert agents["h1"].wait(60) == 17
    pod(job, "h1", "uid-1b", generation=2)
    coordinator.wait_for("up 2 hello", times=2)
    assert job.left_over_ranks(generation="1") == []


@side_by_side
def test_nothing_is_started_while_ranks_may_still_run_on_a_silent_host(job):
    # Ranks that do not end when they are asked to: killing them takes five seconds more.
    stubborn = ["python", "-c", f"import signal\nsignal.signal(15, signal.SIG_IGN)\n{PROGRAM}"]
    coordinator, agents = start(job, command=stubborn)
    job.network.set_link(1, up=False)
    job.wait_for("Lost", 90)
    assert put_roster(job, 2, {"h0": "uid-0"})[0] == 200
    coordinator.wait_for("up 2 hello", seconds=90)
    assert job.left_over_ranks(generation="1") == [], "though nobody could tell them to end"
    assert agents["h1"].process.poll() is None, "its agent waits for the network"


def test_plan_and_telemetry_go_through_the_coordinator(job):
    start(job)
    job.wait_for("Running")
    assert job.call("GET", "/v1/plan", party="h0") == (200, {"generation": 0})
    plan = {"generation": 1, "densityPermille": 10}
    assert job.call("PUT", "/v1/plan", plan) == (200, {"generation": 1})
    assert job.call("GET", "/v1/plan", party="h0") == (200, plan)
    sample = {
        "generation": 1,
        "step": 12,
        "stepSeconds": 0.5,
        "waitSeconds": 0.1,
        "wireBytesPerStep": 1000,
        "denseBytesPerStep": 40000,
        "densityPermille": 10,
        "appliedPlanGeneration": 1,
        "ranks": [{"rank": 0, "host": "h0", "stepSeconds": 0.5}],
        "time": 1700000000,
    }
    assert job.call("POST", "/v1/telemetry", sample, party="h0") == (200, {})
    for_all = {**sample, "ranks": [*sample["ranks"], {"rank": 1, "host": "h1", "stepSeconds": 0.7}]}
    code, said = job.call("POST", "/v1/telemetry", for_all, party="h0")
    assert (code, "names rank 1 of h1" in said["error"]) == (403, True)
    status = job.status()
    assert status["telemetry"] == sample
    assert status["plan"] == {"generation": 1, "appliedGeneration": 1}
    metrics = job.look("/metrics")
    assert 'gradsieve_rank_step_seconds{host="h0",rank="0"} 0.5' in metrics
    assert "gradsieve_refused_reports_total 1.0" in metrics
    assert 'gradsieve_job_state{state="Running"} 1.0' in metrics
    assert "gradsieve_density_ratio 0.01" in metrics
    assert "# HELP gradsieve_step_seconds Seconds per step, mean over the ranks.\n" in metrics
    assert job.look("/healthz") == "ok\n"
    assert job.look("/readyz") == "Running\n"
    shown = json.loads(job.look("/v1/status"))
    assert 0 <= status.pop("telemetryAge") <= shown.pop("telemetryAge") < 60
    assert shown == status
    assert "<h1>gradsieve job</h1>" in job.look("/")
    for path in ("/", "/v1/status", "/metrics"):
        assert "hello" not in job.look(path), "the command's environment is nobody's business"
