"""What the operator reads of nodes from a real Prometheus, and from one that answers nonsense."""

import contextlib
import json

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from scraper import Scraper, eventually

from gradsieve_operator.cluster import node_metrics
from gradsieve_operator.cluster.node_metrics import NodeMetrics, values_by_node
from gradsieve_operator.cluster.options import Options
from gradsieve_operator.errors import OperatorError, SpecError

EXPORTED = """
node_uname_info{{nodename="busy"}} 1
node_pressure_cpu_waiting_seconds_total {waiting}
node_cpu_seconds_total{{cpu="0",mode="steal"}} {stolen}
node_cpu_seconds_total{{cpu="1",mode="steal"}} {stolen}
node_cpu_seconds_total{{cpu="0",mode="user"}} {waiting}
DCGM_FI_DEV_GPU_TEMP{{Hostname="hot",gpu="0"}} 61
DCGM_FI_DEV_GPU_TEMP{{Hostname="hot",gpu="1"}} 91
DCGM_FI_DEV_GPU_TEMP{{Hostname="cool",gpu="0"}} 60
DCGM_FI_DEV_XID_ERRORS{{Hostname="cool",gpu="0"}} 0
DCGM_FI_DEV_XID_ERRORS{{Hostname="broken",gpu="0"}} 79
"""


@contextlib.asynccontextmanager
async def serving(answer):
    """Serve what ``answer`` returns for a path and its query; yields the port."""
    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_what_a_prometheus_knows_of_nodes_is_told_in_words(prometheus, tmp_path):
    count = 0

    async def export(_request):
        nonlocal count
        count += 1
        # Scraped once a second, and taken for what has happened in two minutes.
        return web.Response(text=EXPORTED.format(waiting=10 * count, stolen=5 * count))

    async with serving(export) as port, aiohttp.ClientSession() as session:
        scraper = Scraper(prometheus, tmp_path, {port: {}})
        try:
            found = NodeMetrics(f"http://127.0.0.1:{scraper.port}/")

            async def told():
                await found.read(session)
                return found.words() if len(found.words().get("busy", ())) == 2 else None

            words = await eventually(told)
        finally:
            scraper.close()
    waiting, stolen = words["busy"]
    assert waiting.startswith("processes wait for a processor ")
    assert int(waiting.split()[-4].rstrip("%")) >= 20
    assert stolen.endswith("% of the processors' time is stolen")
    assert int(stolen.split("%")[0]) >= 5
    assert words["hot"] == ("a GPU has 91 °C",)
    assert words["broken"] == ("a GPU reports XID 79",)
    assert "cool" not in words


def vector(*samples):
    result = [{"metric": {"node": node}, "value": [0, value]} for node, value in samples]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


async def answers(text, status=200, before=None):
    """Return what is known of nodes once a Prometheus has answered so."""

    async def answer(_request):
        return web.Response(text=text, status=status)

    async with serving(answer) as port, aiohttp.ClientSession() as session:
        found = before or NodeMetrics(f"http://127.0.0.1:{port}")
        found._url = f"http://127.0.0.1:{port}/api/v1/query"
        await found.read(session)
        return found


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", 200),
        ("[]", 200),
        ("{}", 200),
        ("null", 200),
        ('{"data": {"result": {}}}', 200),
        ('{"data": {"result": [{"metric": {"node": "n"}, "value": [0]}]}}', 200),
        ('{"data": {"result": [{"metric": [], "value": [0, "1"]}]}}', 200),
        (vector(("n", "many")), 200),
        ("[" * 100_000, 200),
        ("x" * (node_metrics._MOST_BYTES + 1), 200),
        (vector(("n", "99")), 503),
    ],
    ids=range(11),
)
async def test_nonsense_is_said_once_and_the_last_answer_stands(text, status, caplog):
    found = await answers(vector(("n", "99")))
    assert found.words()["n"]
    for _ in range(2):
        found = await answers(text, status, before=found)
    assert found.words()["n"], "for two minutes"
    assert sum("does not tell how nodes are" in record.message for record in caplog.records) == 1
    found._read_at -= node_metrics._STALE_SECONDS
    assert found.words() == {}


async def test_nobody_at_that_address_is_no_error():
    found = NodeMetrics("http://127.0.0.1:9")
    async with aiohttp.ClientSession() as session:
        await found.read(session)
    assert found.words() == {}


async def test_a_cluster_of_thousands_of_nodes_is_read_whole():
    found = await answers(vector(*((f"node-{number:05}.example.com", "90") for number in range(10_000))))
    assert len(found.words()) == 10_000


async def test_values_that_are_no_numbers_are_left_out():
    found = await answers(
        vector(("nan", "NaN"), ("inf", "+Inf"), ("hot", "90"), ("", "99"), ("x" * 300, "99"))
    )
    assert set(found.words()) == {"hot"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["data", "result", "metric", "value", "node"]), inner)
        ),
    )
)
def test_any_json_is_read_or_refused(value):
    with contextlib.suppress(OperatorError):
        values_by_node(json.dumps(value).encode())


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://p", "http://", "http://p:70000", "http://p/?a=1"])
def test_what_is_no_address_of_a_prometheus_is_refused(url):
    with pytest.raises(SpecError, match="GRADSIEVE_PROMETHEUS_URL"):
        Options.read({"GRADSIEVE_PROMETHEUS_URL": url})


@pytest.mark.parametrize("url", ["", "http://p:9090", "https://monitoring.example.com/prometheus/"])
def test_addresses_are_taken_as_they_are(url):
    assert Options.read({"GRADSIEVE_PROMETHEUS_URL": url}).prometheus == url
