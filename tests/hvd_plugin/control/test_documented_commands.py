"""The commands of docs/control.md, word for word, on two hosts; and its table of permissions."""

import re
import shlex
from pathlib import Path

import pytest

from gradsieve_hvd.control.identity import PERMISSIONS

pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
pytestmark = pytest.mark.timeout(180)
PAGE = (Path(__file__).parents[3] / "docs" / "control.md").read_text()

TRAIN = """
from mpi4py import MPI
print("sum", MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1), flush=True)
"""


def test_the_commands_start_a_job(spread_job):
    job = spread_job
    (job.folder / "train.py").write_text(TRAIN)
    blocks = re.findall(r"<!-- tested -->\n *```\n *gradsieve (.*?)\n *```", PAGE)
    certificates, agent, coordinator = (in_folder(shlex.split(block), job.folder) for block in blocks)
    job.certificates.rename(job.folder / "unused")
    made = job.gradsieve(*certificates)
    assert made.wait() == 0, made.text()
    agents = [
        job.gradsieve(*(word.replace("h0", host) for word in agent), host=host) for host in ("h0", "h1")
    ]
    done = job.gradsieve(*coordinator)
    assert done.wait() == 0, done.text()
    assert sorted(done.lines("[")) == ["[0] sum 3", "[1] sum 3"]
    assert [program.wait() for program in agents] == [0, 0]


def in_folder(words, folder):
    """Let relative paths lead to ``folder``: processes on other hosts keep no working directory."""
    return [str(folder / word) if word.startswith("tls") or word == "train.py" else word for word in words]


def test_the_table_of_permissions_is_the_one_in_force():
    rows = re.findall(r"^\| `(\w+) (/v1/\w+)`.*?\|(.*?)\|(.*?)\|(.*?)\|$", PAGE, flags=re.MULTILINE)
    documented = {
        (method, path): frozenset(
            role
            for role, cell in zip(("coordinator", "worker", "operator"), cells, strict=True)
            if cell.strip() != "no"
        )
        for method, path, *cells in rows
    }
    assert documented == dict(PERMISSIONS)
