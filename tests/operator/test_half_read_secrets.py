"""Of Secrets that could be read in part only, nothing follows: a running job's certificates are not lost."""

import datetime as dt
from typing import Any

import horovod_jobs as jobs
import pytest

from gradsieve_operator.certificates import issue
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.cluster.secrets import read_secrets
from gradsieve_operator.errors import ApiError
from gradsieve_operator.resources import certificate_secrets


@pytest.fixture(scope="module")
def secrets() -> dict[str, dict]:
    job = jobs.job()
    made = certificate_secrets(job, issue(job.name, job.namespace, ["worker-0"], dt.datetime.now(dt.UTC)))
    for number, secret in enumerate(made):
        secret["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": "1"}
    return {secret["metadata"]["name"]: secret for secret in made}


class Server:
    """Answers as many requests for Secrets as it is told to, then none."""

    def __init__(self, secrets: dict[str, dict], answers: int) -> None:
        self._secrets, self._left = secrets, answers

    async def find(self, path: str) -> dict[str, Any]:
        self._left -= 1
        if self._left < 0:
            raise ApiError(500, "InternalError", f"{path}: etcd has no leader")
        return self._secrets[path.rpartition("/")[2]]


@pytest.mark.parametrize("answers", range(3))
async def test_they_are_read_again_at_the_next_look(secrets, answers):
    memory = Memory()
    with pytest.raises(ApiError):
        await read_secrets(Server(secrets, answers), jobs.job(), memory)
    assert not memory.secrets, "the observer reads them again only while there are none"
    await read_secrets(Server(secrets, 3), jobs.job(), memory)
    assert (len(memory.secrets), memory.held.lost) == (3, ())


@pytest.mark.parametrize("answers", range(3))
async def test_what_was_known_before_stays_known(secrets, answers):
    memory = Memory()
    await read_secrets(Server(secrets, 3), jobs.job(), memory)
    before = memory.secrets, memory.held
    with pytest.raises(ApiError):
        await read_secrets(Server(secrets, answers), jobs.job(), memory)
    assert (memory.secrets, memory.held) == before
