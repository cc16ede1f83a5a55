"""A record that the API server drops is an error; an earlier version's goes once there is a new one."""

from typing import Any

import pytest

from gradsieve_operator.cluster.cache import Cache, Told
from gradsieve_operator.cluster.memory import Memory
from gradsieve_operator.cluster.recording import write_status
from gradsieve_operator.decide import Progress
from gradsieve_operator.errors import OperatorError
from gradsieve_operator.status import record

WHERE = "/apis/gradsieve.io/v1alpha1/namespaces/research/horovodjobs/digits"


class Server:
    """Merges into the status what its schema knows."""

    def __init__(self, known: set[str], status: dict[str, Any]) -> None:
        self.known, self.status, self.version = known, status, 1

    async def merge(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == f"{WHERE}/status"
        assert body["metadata"]["resourceVersion"] == str(self.version)
        self.version += 1
        kept = {name: value for name, value in body["status"].items() if name in self.known}
        merged = {**self.status, **kept}
        self.status = {name: value for name, value in merged.items() if value is not None}
        return {"metadata": self.about(), "status": self.status}

    def about(self) -> dict[str, Any]:
        return {"namespace": "research", "name": "digits", "resourceVersion": str(self.version)}


async def written(server: Server) -> None:
    memory = Memory()
    memory.version = str(server.version)
    nobody = Told(lambda _: None, lambda _: None, lambda _: None)
    cache = Cache(server, (), nobody)
    await write_status(server, cache, WHERE, "uid", record(Progress(generation=2)), memory)
    assert memory.version == str(server.version)
    assert list(cache.bodies()) == [{"metadata": server.about(), "status": server.status}]


async def test_the_definitions_of_an_earlier_version_are_named_and_its_record_stays():
    server = Server({"progress", "conditions"}, {"progress": {"generation": 1}})
    with pytest.raises(OperatorError, match="apply the CustomResourceDefinitions of this version"):
        await written(server)
    assert server.status == {"progress": {"generation": 1}}


async def test_an_earlier_versions_record_goes_after_the_first_one_of_this_version():
    server = Server({"progress", "record"}, {"progress": {"generation": 1}})
    await written(server)
    assert server.status == record(Progress(generation=2))
