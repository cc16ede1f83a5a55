"""`gradsieve submit --dry-run` and `gradsieve top --once`, as people call them."""

import asyncio
import signal
import subprocess
import sys

import horovod_jobs as jobs
import kmock
import yaml
from operator_in_memory import JOB, until


def called(*words):
    """Run the command in a process of its own, as it is meant to be."""
    return subprocess.run(
        [sys.executable, "-m", "gradsieve_hvd.cli", *words], capture_output=True, text=True, timeout=60
    )


def test_a_dry_run_without_any_cluster_prints_job_and_config_map(tmp_path):
    (tmp_path / "train.py").write_text("print('hello')\n")
    asked = ["--kubeconfig", "/nowhere", "--image", "i:1", "--workers", "4", "--gpu", "A100", "--dry-run"]
    done = called("submit", str(tmp_path / "train.py"), *asked, "first", "--", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    found, program = yaml.safe_load_all(done.stdout)
    container = found["spec"]["workerGroups"][0]["template"]["spec"]["containers"][0]
    assert container["command"] == ["python3", "/workspace/train.py", "first", "--epochs", "3"]
    assert found["spec"]["scheduling"]["gpuProducts"] == ["A100"]
    assert program["data"] == {"train.py": "print('hello')\n"}
    assert "    print('hello')\n" in done.stdout, "as a text that people can read"
    assert "--gpu is taken for the whole name" in done.stderr


def test_without_a_cluster_nothing_is_submitted_and_it_is_said_how_to_name_one(tmp_path):
    (tmp_path / "train.py").touch()
    done = called("submit", str(tmp_path / "train.py"), "--image", "i:1", "--kubeconfig", "/nowhere")
    assert done.returncode == 1
    assert "Name a kubeconfig by --kubeconfig or KUBECONFIG" in done.stderr


def test_a_program_that_is_too_large_is_refused_before_anything_is_made(tmp_path):
    (tmp_path / "train.py").write_text("x" * 2**20)
    done = called("submit", str(tmp_path / "train.py"), "--image", "i:1", "--dry-run")
    assert done.returncode == 1
    assert "into the image or onto a volume" in done.stderr


async def test_top_once_prints_a_table_of_one_namespace_or_of_all(server):
    server.objects[JOB, "research", "digits"] = jobs.body()
    server.objects[JOB, "other", "words"] = jobs.body(name="words", namespace="other")
    done = await asyncio.to_thread(called, "top", "--once", "-n", "research")
    header, row = done.stdout.splitlines()
    assert header.split()[:3] == ["NAMESPACE", "NAME", "STATE"]
    assert row.split()[:4] == ["research", "digits", "-", "worker:0/2"]
    everywhere = await asyncio.to_thread(called, "top", "-A")
    assert [line.split()[1] for line in everywhere.stdout.splitlines()] == ["NAME", "words", "digits"]
    assert len(header.split()) == len(row.split())


async def test_top_says_what_the_api_server_says(server):
    del server.resources[JOB]
    done = await asyncio.to_thread(called, "top", "--once")
    assert done.returncode == 1
    assert "cannot list the jobs: " in done.stderr


async def test_top_of_one_job_shows_its_row_and_says_why_there_are_no_ranks(server):
    server.objects[JOB, "research", "digits"] = jobs.body()
    done = await asyncio.to_thread(called, "top", "digits", "-n", "research")
    assert done.returncode == 0, done.stderr
    jobs_table, plan, ranks = done.stdout.split("\n\n")
    assert jobs_table.splitlines()[1].split()[1] == "digits"
    assert plan.split()[:5] == ["MODE", "PLAN", "APPLIED", "REASON", "LOSS"]
    assert ranks.split() == ["HOST", "RANK", "WORK", "WAIT", "THROTTLED", "CONNECTED"]
    assert done.stderr == "no ranks: no coordinator runs\n"


async def test_top_of_a_job_that_is_not_there_fails(server):
    done = await asyncio.to_thread(called, "top", "digits", "-n", "research")
    assert done.returncode == 1
    assert "cannot read the job digits: " in done.stderr


def test_top_of_one_job_is_not_of_all_namespaces():
    done = called("top", "digits", "-A")
    assert done.returncode == 2
    assert "leave --all-namespaces out" in done.stderr


async def test_a_job_is_held_back_until_the_config_map_that_it_owns_is_there(server, tmp_path):
    (tmp_path / "train.py").write_text("print()\n")
    words = ("submit", str(tmp_path / "train.py"), "--image", "i:1", "-n", "research", "--detach")
    done = await asyncio.to_thread(called, *words)
    assert done.returncode == 0, done.stderr
    jobs_there = "/apis/gradsieve.io/v1alpha1/namespaces/research/horovodjobs"
    assert server.writes == [
        f"POST {jobs_there}/train",
        "POST /api/v1/namespaces/research/configmaps/train-program",
        f"PATCH {jobs_there}/train",
    ]
    job, program = server.all(JOB)["train"], server.all("v1/configmaps")["train-program"]
    assert job["spec"]["suspend"] is False
    assert program["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert program["data"] == {"train.py": "print()\n"}


async def test_a_job_whose_config_map_is_refused_is_deleted_again(server, tmp_path):
    def refuse(request):
        if "configmaps" in request.url.path:
            raise kmock.KubernetesError(status=403, reason="Forbidden", message="exceeded quota: none")

    server.before = refuse
    (tmp_path / "train.py").touch()
    words = ("submit", str(tmp_path / "train.py"), "--image", "i:1", "-n", "research")
    done = await asyncio.to_thread(called, *words)
    assert done.returncode == 1
    assert "cannot create the ConfigMap train-program: exceeded quota: none" in done.stderr
    assert server.writes[-1].startswith("DELETE ")


async def test_whoever_stops_following_is_told_how_to_go_on_and_the_job_stays(server, tmp_path):
    (tmp_path / "train.py").touch()
    words = ["submit", str(tmp_path / "train.py"), "--image", "i:1", "-n", "research"]
    process = await asyncio.create_subprocess_exec(
        # Where tests run in the background of a shell, it has them ignore Ctrl-C, and so what they start.
        *("env", "--default-signal=INT", sys.executable, "-m", "gradsieve_hvd.cli", *words),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        await until(lambda: server.all(JOB).get("train", {}).get("spec", {}).get("suspend") is False)
        condition = {"type": "Running", "status": "False", "reason": "Starting", "message": "soon"}
        server.objects[JOB, "research", "train"].patch({"status": {"conditions": [condition]}})
        assert await process.stderr.readline() == b"Starting: soon\n"
        process.send_signal(signal.SIGINT)
        said = (await process.stderr.read()).decode()
        assert await process.wait() == 130
    assert "kubectl --namespace research logs --follow train-coordinator-1" in said
    assert "kubectl --namespace research delete hvj train" in said
    assert "train" in server.all(JOB)


async def test_a_job_of_a_name_that_is_taken_is_not_touched(server, tmp_path):
    theirs = jobs.body(name="train")
    theirs["metadata"]["resourceVersion"] = "1000"
    server.objects[JOB, "research", "train"] = theirs
    (tmp_path / "train.py").touch()
    words = ("submit", str(tmp_path / "train.py"), "--image", "i:1", "-n", "research")
    done = await asyncio.to_thread(called, *words)
    assert done.returncode == 1
    assert "cannot create the job train: it exists" in done.stderr
    assert server.all(JOB)["train"] == theirs
