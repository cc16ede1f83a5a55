"""What the operator asks of the API server for each of a hundred jobs; how fast it is, is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "operator_scale.py"
JOBS = 100
PODS = 4  # of each
SECONDS = 400

pytestmark = pytest.mark.timeout(SECONDS + 60)


@pytest.fixture(scope="module")
def result(machine, tmp_path_factory):
    file = tmp_path_factory.mktemp("scale") / "result.json"
    # Each job is changed more than once, so that changes are taken back, too.
    shortened = ["--minutes", "0.5", "--rate", "4", "--steady-minutes", "0.5"]
    command = [sys.executable, BENCHMARK, "--jobs", str(JOBS), *shortened, "--json", file]
    subprocess.run(command, check=True, timeout=SECONDS)
    return json.loads(file.read_text())


def test_a_life_takes_a_request_for_each_pod_and_24(result):
    details = result["details"][str(JOBS)]

    assert result["rows"][0]["requests_per_job"] <= PODS + 24, details["requests_of_a_life"]


def test_in_steady_state_a_job_takes_at_most_one_request_a_minute(result):
    details = result["details"][str(JOBS)]

    assert result["rows"][0]["steady_requests_per_minute"] <= 1, details["requests_in_steady_state"]


def test_every_change_arrives(result):
    latencies = result["details"][str(JOBS)]["latencies"]

    assert {kind: found["lost"] for kind, found in latencies.items()} == dict.fromkeys(latencies, 0)
    assert latencies.keys() == {"density", "grow", "shrink", "suspend", "resume"}


def test_the_next_leader_goes_on(result):
    assert result["rows"][0]["failover_seconds"] is not None


def test_it_says_how_fast_a_processor_was(result):
    assert result["details"][str(JOBS)]["loop_seconds"] > 0
