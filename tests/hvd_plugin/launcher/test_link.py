"""The emulated link: every rank on a host of its own, at the rate asked for, and nothing of it left over."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsieve_hvd.launcher.counters import MTU
from gradsieve_hvd.launcher.network import burst, most_segments

pytest.importorskip("mpi4py", reason="NO MPI HERE: mpi4py is not installed")
pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("emulated_link_allowed")]

WHERE = """
import json, os, socket
from mpi4py import MPI
world = MPI.COMM_WORLD
local = world.Split_type(MPI.COMM_TYPE_SHARED).size
network = os.readlink("/proc/self/ns/net")
print(json.dumps([world.rank, socket.gethostname(), local, socket.gethostbyname("h1"), network]), flush=True)
"""

# Rank 0 sends, rank 1 times what arrives after the first piece; both count what their interface saw. They
# come before the tests beside them: at 1 Gbit/s a rank that waits for a processor cannot empty the link.
TRANSFER = """
import contextlib, json, os, socket, sys, time
from mpi4py import MPI
from gradsieve_hvd.launcher.counters import interface_bytes, link_rate
with contextlib.suppress(PermissionError):
    os.nice(-15)
world, size = MPI.COMM_WORLD, int(sys.argv[1])
server = socket.create_server(("", 5000)) if world.rank == 1 else None
world.barrier()
before = interface_bytes()
if world.rank == 1:
    peer, _ = server.accept()
    peer.recv(1 << 16)
    got, began = 0, time.perf_counter()
    while data := peer.recv(1 << 20):
        got += len(data)
    seconds = time.perf_counter() - began
    peer.sendall(b"!")
    print(json.dumps(["rate", got * 8 / seconds / link_rate()]), flush=True)
else:
    with socket.create_connection(("h1", 5000)) as peer:
        peer.sendall(bytes(size))
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)
traffic = interface_bytes().since(before)
print(json.dumps(["traffic", world.rank, traffic.sent / size, traffic.received / size]), flush=True)
"""

# Rank 0 sends to one host after the other, which say when they have all.
TO_TWO = """
import json, socket, sys, time
from mpi4py import MPI
world, size = MPI.COMM_WORLD, int(sys.argv[1])
server = socket.create_server(("", 5000))
world.barrier()
if world.rank == 0:
    for host in ("h1", "h2"):
        with socket.create_connection((host, 5000)) as peer:
            began = time.perf_counter()
            peer.sendall(bytes(size))
            peer.shutdown(socket.SHUT_WR)
            peer.recv(1)
            print(json.dumps([0, host, size * 8 / (time.perf_counter() - began)]), flush=True)
else:
    peer, _ = server.accept()
    while peer.recv(1 << 20):
        pass
    peer.sendall(b"!")
"""

SLEEP = "import time; print('ready', flush=True); time.sleep(1000)"


def network_names():
    """Names that a careless emulation would leave on the machine: interfaces, and namespaces of ip(8)."""
    interfaces = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    return sorted(interfaces), sorted(path.name for path in Path("/run/netns").iterdir()) if Path(
        "/run/netns"
    ).is_dir() else []


@pytest.fixture(autouse=True)
def machine_is_left_as_it_was(launcher):
    before = network_names(), Path("/etc/hosts").read_bytes()
    yield
    assert launcher.left_over() == []
    assert (network_names(), Path("/etc/hosts").read_bytes()) == before


def lines(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_is_on_a_host_of_its_own(launcher, ranks):
    found = sorted(lines(launcher.run("-np", str(ranks), "--link", "100mbit", "--", "python", "-c", WHERE)))
    assert [line[:4] for line in found] == [[rank, f"h{rank}", 1, "10.99.0.3"] for rank in range(ranks)]
    networks = {line[4] for line in found} | {str(Path("/proc/self/ns/net").readlink())}
    assert len(networks) == ranks + 1


@pytest.mark.parametrize(
    ("rate", "size"), [("10mbit", 1_500_000), ("100mbit", 12_000_000), ("1gbit", 240_000_000)]
)
def test_the_rate_is_the_one_asked_for_and_the_counters_see_the_bytes(launcher, rate, size):
    done = launcher.run("-np", "2", "--link", rate, "--", "python", "-c", TRANSFER, str(size))
    found = {
        tuple(line[:-1]) if line[0] == "rate" else tuple(line[:2]): line[2:] or line[1]
        for line in lines(done)
    }
    # Headers take 4 to 5 %; the rest is what a burst and a busy machine's timer may do.
    assert 0.85 < found.pop(("rate",)) < 1.05
    sender, receiver = found["traffic", 0], found["traffic", 1]
    assert 1.04 <= sender[0] < 1.10
    assert 1.04 <= receiver[1] < 1.10
    assert sender[1] < 0.10
    assert receiver[0] < 0.10


def test_a_rank_may_have_a_slower_link_than_the_others(launcher):
    link = ("-np", "3", "--link", "400mbit,1:10mbit")
    found = lines(launcher.run(*link, "--", "python", "-c", TO_TWO, "1500000"))
    rates = {host: rate for rank, host, rate in found if rank == 0}
    assert 0.85 < rates["h1"] / 10e6 < 1.05
    assert rates["h2"] > 40e6


@given(st.integers(1_000_000, 100_000_000_000))
def test_what_tcp_hands_over_at_once_fits_a_burst(rate):
    assert most_segments(rate) * (MTU + 14) <= burst(rate)


def test_the_end_of_the_run_tells_what_was_sent(launcher):
    done = launcher.run("-np", "2", "--link", "100mbit", "--", "python", "-c", TRANSFER, "2000000")
    summary = done.stderr.splitlines()[-1]
    assert summary.startswith("gradsieve run: link 100mbit, ")
    first, second = (int(count.replace(",", "")) for count in summary.split("per rank: ")[1].split())
    assert 2_000_000 < first < 2_400_000
    assert second < 400_000


def test_two_links_at_a_time_do_not_meet(launcher):
    second = launcher.start("-np", "2", "--link", "50mbit", "--", "python", "-c", WHERE)
    first = launcher.run("-np", "2", "--link", "100mbit", "--", "python", "-c", WHERE)
    out, err = second.communicate(timeout=90)
    assert second.returncode == 0, err
    networks = [line[4] for line in lines(first)] + [json.loads(line)[4] for line in out.splitlines()]
    assert len(set(networks)) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_job_leaves_no_network(launcher, number):
    process = launcher.start("-np", "2", "--link", "100mbit", "--", "python", "-c", SLEEP)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number)


def test_a_failing_rank_gives_the_status(launcher):
    done = launcher.run("-np", "2", "--link", "100mbit", "--", "python", "-c", "raise SystemExit(3)")
    assert done.returncode == 3
    assert "exited with status 3" in done.stderr


def test_without_shaping_there_is_no_rate(launcher):
    code = "from gradsieve_hvd.launcher.counters import link_rate; print(link_rate())"
    assert launcher.run("-np", "2", "--link", "none", "--", "python", "-c", code).stdout == "None\n" * 2


# Root in a container: mapping a user namespace's root to it takes CAP_SETFCAP, which containers have.
CONTAINER_ROOT = ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all"]
NOBODY = [sys.executable, str(Path(__file__).with_name("as_nobody.py"))]
USER_NAMESPACE = ["unshare", "--user", "--map-root-user", "--net", "--uts", "--mount", "true"]


def cannot_tell(reason):
    """Skips, saying why; fails instead where CI requires the link."""
    if os.environ.get("GRADSIEVE_REQUIRE_LINK") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other link tests ran without root already")
@pytest.mark.parametrize(
    "prefix", [pytest.param(CONTAINER_ROOT, id="container's root"), pytest.param(NOBODY, id="nobody")]
)
def test_an_unprivileged_user_gets_a_link_through_a_user_namespace(launcher, prefix):
    if not shutil.which("setpriv") or not shutil.which("unshare"):
        cannot_tell("NO setpriv(1) OR unshare(1) HERE: cannot become another user")

    def error(*command):
        done = subprocess.run([*prefix, *command], capture_output=True, text=True, env=launcher.environment())
        return done.returncode and done.stderr

    if said := error(sys.executable, "-c", "import gradsieve_hvd, mpi4py"):
        cannot_tell(f"NO INTERPRETER HERE that a user without privileges may run: {said}")
    if said := error(*USER_NAMESPACE):
        pytest.skip(f"NO USER NAMESPACES HERE, the kernel forbids them: {said}")
    assert error("unshare", "--net", "true"), "this user is privileged"
    launcher.prefix = prefix
    done = launcher.run("-np", "2", "--link", "100mbit", "--", sys.executable, "-c", WHERE)
    assert sorted(line[:3] for line in lines(done)) == [[0, "h0", 1], [1, "h1", 1]]
    assert launcher.left_over() == []
