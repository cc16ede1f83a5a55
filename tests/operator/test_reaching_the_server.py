"""kopf and the operator reach the same clusters, whatever Python they run with."""

import json
import ssl

import pytest
from aiohttp import web
from cluster.certificates import Authority

from gradsieve_operator import handlers
from gradsieve_operator.cluster.access import Access
from gradsieve_operator.cluster.api import Api


@pytest.fixture
def strict(monkeypatch):
    """Contexts as Python makes them from 3.13 on."""
    make = ssl.create_default_context

    def stricter(*given, **named):
        context = make(*given, **named)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", stricter)


@pytest.fixture
async def server(tmp_path, monkeypatch):
    """An API server of a cluster whose certificates say nothing of the key that has signed them."""
    authority = Authority(tmp_path)
    pair = authority.issue("server", "kubernetes", hosts=["127.0.0.1"])
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"path": request.path})

    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    address, port = runner.addresses[0][:2]
    cluster = {"server": f"https://{address}:{port}", "certificate-authority": str(authority.ca)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(file))
    yield
    await runner.cleanup()


async def test_kopf_reaches_a_cluster_whose_certificates_name_no_authority_key(server, strict):
    found = await handlers.login()
    async with found.aiohttp_session as session, session.get(f"{found.server}/version") as answer:
        assert await answer.json() == {"path": "/version"}
        assert session.headers["authorization"] == "Bearer secret"


async def test_the_operator_reaches_it_too(server, strict):
    async with Api(Access.find()) as api:
        assert await api.get("/version") == {"path": "/version"}


async def test_neither_trusts_a_server_of_another_authority(server, strict, tmp_path):
    config = json.loads((tmp_path / "kubeconfig").read_text())
    other = tmp_path / "other"
    other.mkdir()
    config["clusters"][0]["cluster"]["certificate-authority"] = str(Authority(other).ca)
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    found = await handlers.login()
    async with found.aiohttp_session as session:
        with pytest.raises(OSError, match="certificate verify failed"):
            await session.get(f"{found.server}/version")
