"""The proxies between operator and API server do what tests ask for, and otherwise nothing."""

import datetime as dt
import http.client
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cutting_proxy import Cut, CuttingProxy
from fault_proxy import FaultProxy

TOKEN = "Bearer of-the-operator"


class Handler(BaseHTTPRequestHandler):
    """An API server that notes what it is asked, and whose watches tell one thing and then nothing."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str, str]]
    over: threading.Event

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append((self.command, self.path, self.headers["Authorization"]))
        self.send_response(HTTPStatus.OK)
        if "watch=1" in self.path:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"6\r\nevent\n\r\n")
            self.over.wait(20)
        else:
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    do_GET = do_POST = do_PATCH = _answer  # noqa: N815 - names of the base class

    def log_message(self, *_) -> None:
        """Say nothing."""


@pytest.fixture
def api(tmp_path) -> Iterator[SimpleNamespace]:
    """The server as a cluster: `kubeconfig_of` names it, `asked` is what it was asked."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "api")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    ca, pair = tmp_path / "ca.crt", tmp_path / "pair.pem"
    ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pair.write_bytes(private + ca.read_bytes())
    asked: list[tuple[str, str, str]] = []
    over = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"asked": asked, "over": over}))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    where = tmp_path / "kubeconfig"
    where.write_text(
        yaml.safe_dump(
            {
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {
                            "server": f"https://127.0.0.1:{server.server_port}",
                            "certificate-authority": str(ca),
                        },
                    }
                ],
                "users": [{"name": "u", "user": {"token": TOKEN.removeprefix("Bearer ")}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "c",
            }
        )
    )
    yield SimpleNamespace(kubeconfig_of=lambda _account: where, asked=asked)
    over.set()
    server.shutdown()
    server.server_close()


@contextmanager
def connected(kubeconfig: Path) -> Iterator[http.client.HTTPConnection]:
    """Connect as a client does that was given a proxy's kubeconfig."""
    server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=20)
    yield connection
    connection.close()


def ask(connection: http.client.HTTPConnection, method: str, path: str) -> http.client.HTTPResponse:
    connection.request(method, path, "{}" if method != "GET" else None, {"Authorization": "of no use"})
    return connection.getresponse()


@pytest.fixture
def faulty(api, tmp_path) -> Iterator[FaultProxy]:
    proxy = FaultProxy(api, tmp_path)
    with proxy.serving():
        yield proxy


def test_what_is_forwarded_is_asked_for_with_the_operator_s_rights(api, faulty):
    with connected(faulty.kubeconfig) as connection:
        assert ask(connection, "GET", "/api/v1/pods").read() == b"{}"
        assert ask(connection, "PATCH", "/api/v1/pods/one").read() == b"{}"
    assert api.asked == [("GET", "/api/v1/pods", TOKEN), ("PATCH", "/api/v1/pods/one", TOKEN)]
    assert faulty.troubled == 0


def test_what_is_refused_never_arrives_and_the_connection_goes_on(api, faulty):
    with connected(faulty.kubeconfig) as connection:
        with faulty.refusing(HTTPStatus.TOO_MANY_REQUESTS, 1.0):
            answer = ask(connection, "POST", "/api/v1/pods")
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
            assert json.loads(answer.read())["reason"] == "TooManyRequests"
        assert api.asked == []
        assert ask(connection, "POST", "/api/v1/pods").read() == b"{}"


def test_a_watch_that_is_cut_ends_without_an_end(faulty):
    with connected(faulty.kubeconfig) as connection:
        answer = ask(connection, "GET", "/api/v1/pods?watch=1")
        assert answer.readline() == b"event\n"
        faulty.cut_watches()
        with answer, pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()


class Operator:
    """Counts how often it was killed and started."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def kill(self) -> None:
        self.told.append("killed")

    def start(self, kubeconfig: Path | None = None) -> None:
        self.told.append("started")


@pytest.mark.parametrize(("cut", "arrived"), [(Cut.BEFORE, 0), (Cut.AFTER, 1)])
def test_an_operator_dies_at_a_write_which_has_arrived_or_not(api, tmp_path, cut, arrived):
    operator = Operator()
    proxy = CuttingProxy(api, operator, tmp_path)
    proxy.choose = lambda write: cut if write.name == "one" else None
    with proxy.running(), connected(proxy.kubeconfig) as connection:
        assert ask(connection, "PATCH", "/api/v1/pods/other").read() == b"{}"
        operator.told.clear()
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(connection, "PATCH", "/api/v1/pods/one")
        assert operator.told == ["killed", "started"]
    assert [write.name for write in proxy.writes] == ["other", "one"][: 1 + arrived]
    assert len(api.asked) == 1 + arrived
    assert [(write.name, how) for write, how in proxy.deaths] == [("one", cut)]


def test_what_an_operator_has_sent_before_it_died_is_dropped(api, tmp_path):
    operator = Operator()
    proxy = CuttingProxy(api, operator, tmp_path)
    proxy.choose = lambda write: Cut.BEFORE if write.name == "one" else None
    with proxy.running(), connected(proxy.kubeconfig) as early, connected(proxy.kubeconfig) as dying:
        assert ask(early, "GET", "/api/v1/pods").read() == b"{}"
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(dying, "PATCH", "/api/v1/pods/one")
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(early, "PATCH", "/api/v1/pods/other")
    assert [path for _, path, _ in api.asked] == ["/api/v1/pods"]
