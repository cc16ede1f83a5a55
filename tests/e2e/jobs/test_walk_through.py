"""A newcomer's way through docs/kubernetes.md: its commands, word for word, one after another."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from sample_jobs import stand_in

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs/kubernetes.md").read_text()
STEPS = ("### 2. Bring your program", "### 3. Start a job", "### 5. Steer a job")
EARLY = ("ContainerCreating", "PodInitializing", "NotFound")
COMMAND_SECONDS = 120


def commands(step: str) -> list[str]:
    """The commands of a step of the document."""
    text = DOCUMENT[DOCUMENT.index(step) :]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text[: text.index("\n### ")], re.MULTILINE | re.DOTALL)
    return [line for language, block in blocks if not language for line in block.splitlines()]


@pytest.fixture
def newcomer(cluster, namespace, tmp_path):
    """Run a command in a clone with other images' names, as step 1 says, in a namespace of one's own."""
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    for sample in (tmp_path / "manifests/samples").glob("*.yaml"):
        manifest = yaml.safe_load(sample.read_text())
        if manifest["kind"] == "HorovodJob":
            stand_in(manifest, cluster, namespace)
            sample.write_text(yaml.safe_dump(manifest))
    kubeconfig = tmp_path / "kubeconfig"
    shutil.copy(cluster.kubeconfig, kubeconfig)
    environment = {**cluster.environment(), "KUBECONFIG": os.fspath(kubeconfig)}

    def run(command: str) -> str:
        deadline = time.monotonic() + COMMAND_SECONDS
        while True:
            done = subprocess.run(
                ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True,
                timeout=COMMAND_SECONDS, check=False,
            )  # fmt: skip
            # A person who is faster than the cluster says it once more. Of a container that is made and does
            # not run yet, the kubelet follows no log: nothing is shown, and nothing is said of it.
            nothing = command.startswith("kubectl logs --follow") and not done.stdout
            early = nothing or any(word in done.stderr for word in EARLY)
            if not early or time.monotonic() > deadline:
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
                return done.stdout
            time.sleep(0.5)

    run(f"kubectl config set-context --current --namespace={namespace}")
    return run


def test_the_documents_commands_train_watch_steer_and_end_jobs(operator, newcomer):
    said = {command: newcomer(command) for step in STEPS for command in commands(step)}
    assert len(said) >= 14
    assert "accuracy" in said["kubectl logs --follow minimal-coordinator-1"]
    assert re.match(r"NAME +STATE +READY +DESIRED +STEP +DENSITY +AGE\nminimal ", said["kubectl get hvj"])
    assert "Worker Groups:" in said["kubectl describe hvj minimal"]
    elastic = said["kubectl logs elastic-coordinator-1"]
    assert "4 ranks go on from step" in elastic
    for rank in range(4):
        assert f"rank {rank}: plan 2 (densityPermille 20, " in elastic, "the density given by hand"
    assert newcomer("kubectl get hvj") == ""
