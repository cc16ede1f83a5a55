"""`helm test` fails unless both kinds are served, all replicas are ready, and one of them leads."""

import contextlib

import pytest

from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api
from gradsieve_operator.cluster.health import serving_health
from gradsieve_operator.cluster.installed import NotInstalled, check

KINDS = {"resources": [{"name": "horovodjobs"}, {"name": "compressionpolicies"}]}
WAITS = {"watch of jobs": 1.0}
LEADS = {**WAITS, "reconciling": 1.0}


@pytest.fixture
def checked(server, port):
    """Check one replica with these parts; None stands for no replica at all."""

    async def check_it(parts, kinds=KINDS, replicas=1):
        server["get /apis/gradsieve.io/v1alpha1"] << kinds
        async with contextlib.AsyncExitStack() as stack:
            if parts is not None:
                health = serving_health(f"127.0.0.1:{port}", lambda: parts, dict)
                await stack.enter_async_context(health)
            api = await stack.enter_async_context(Api(Access.find()))
            return await check(api, "127.0.0.1", port, replicas)

    return check_it


async def test_a_replica_that_leads_is_an_installation_that_works(checked):
    assert "127.0.0.1 leads" in await checked(LEADS)


@pytest.mark.parametrize(
    ("parts", "more", "says"),
    [
        pytest.param(WAITS, {}, "0 of 1 replicas lead", id="nobody leads"),
        pytest.param({"watch of jobs": 900.0}, {}, "is not well: watch of jobs", id="a part has stopped"),
        pytest.param(None, {}, "does not answer", id="no answer"),
        pytest.param(LEADS, {"replicas": 2}, "1 of 2 replicas are ready", id="one is missing"),
        pytest.param(LEADS, {"kinds": {"resources": []}}, "not served: compressionpolicies", id="no kinds"),
    ],
)
async def test_what_does_not_work_is_named(checked, parts, more, says):
    with pytest.raises(NotInstalled, match=says):
        await checked(parts, **more)
