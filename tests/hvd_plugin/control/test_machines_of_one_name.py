"""MPI cannot tell machines of one name apart: such a job is refused before it starts, not left waiting."""

import socket
import subprocess

import pytest
from control_job import on_a_machine_named
from hypothesis import given
from hypothesis import strategies as st

from gradsieve.errors import LaunchError
from gradsieve_hvd.control.machine_names import check_distinct
from gradsieve_hvd.control.messages import Incarnation, Place, Registration, Roster
from gradsieve_hvd.control.registry import Registry

LABELS = st.text("abz019-", min_size=1, max_size=8)
ALLREDUCE = """
import horovod.torch as hvd, torch
hvd.init()
print("allreduce", hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum).item(), flush=True)
"""


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["vm", "vm"], id="same"),
        pytest.param(["n1.east", "n1.west"], id="domains"),
        pytest.param(["n1", "n1.west"], id="domain"),
        pytest.param(["10.0.0.1", "10.0.0.1"], id="address"),
    ],
)
def test_two_hosts_whose_machines_have_one_name_are_refused(names):
    with pytest.raises(
        LaunchError, match=r"hosts h0, h2 run on machines that are all named '(vm|n1|10.0.0.1)'"
    ):
        check_distinct({"h0": names[0], "h1": "other", "h2": names[1]})


def test_addresses_differ_behind_their_first_dot():
    check_distinct({"h0": "10.0.0.1", "h1": "10.0.0.2"})


def test_of_many_hosts_some_are_named():
    with pytest.raises(LaunchError, match="hosts h0, .*, h9 and 90 more run on"):
        check_distinct({f"h{n}": "localhost" for n in range(100)})


def test_machines_that_do_not_say_their_names_pass():
    check_distinct({"h0": "", "h1": "", "h2": "vm"})


@given(st.lists(LABELS, unique=True), st.lists(LABELS))
def test_machines_pass_exactly_if_their_short_names_differ(labels, domains):
    distinct = {f"h{n}": ".".join([label, *domains, "lan"]) for n, label in enumerate(labels)}
    check_distinct(distinct)
    if labels:
        with pytest.raises(LaunchError, match="hostname"):
            check_distinct({**distinct, "twin": labels[0]})


def test_the_machines_of_admitted_incarnations_count_and_no_others():
    registry = Registry()
    registry.adopt(Roster(2, ("true",), "MPI", (Place("h0", "new", 1), Place("h1", "", 1))))
    for host, uid, machine in [("h0", "old", "a"), ("h0", "new", "b"), ("h1", "x", "c"), ("h2", "y", "d")]:
        registry.register(Registration(Incarnation(host, uid), 2, 1, machine=machine))
    assert registry.machines() == {"h0": "b", "h1": "c"}
    registry.disconnect(Incarnation("h1", "x"))
    assert registry.machines() == {"h0": "b"}


def test_two_agents_on_one_machine_are_told_what_to_do_instead(job):
    agents = [job.agent(host, "--once", machine="vm.east") for host in ("h0", "h1")]
    coordinator = job.coordinator("--hosts", "h0,h1", "--", "python", "-c", "print('a rank ran')")
    assert coordinator.wait(60) == 1
    said = coordinator.text()
    assert "Failed: hosts h0, h1 run on machines that are all named 'vm', which MPI cannot tell apart" in said
    assert "a rank ran" not in said
    assert [agent.wait() for agent in agents] == [1, 1]
    assert job.left_over() == []


@pytest.mark.timeout(180)
def test_with_names_of_their_own_or_gloo_they_work(job):
    pytest.importorskip("horovod", reason="NO HOROVOD HERE: `gradsieve build-horovod` builds it")
    for machines, options in [(("h0", "h1"), []), (("vm", "vm"), ["--gloo"])]:
        agents = [job.agent(f"h{n}", "--once", machine=machine) for n, machine in enumerate(machines)]
        coordinator = job.coordinator("--hosts", "h0,h1", *options, "--", "python", "-c", ALLREDUCE)
        assert coordinator.wait(90) == 0, coordinator.text()
        assert sorted(coordinator.lines("[")) == ["[0] allreduce 3.0", "[1] allreduce 3.0"]
        assert [agent.wait() for agent in agents] == [0, 0]


@pytest.mark.timeout(180)
def test_gloo_takes_the_network_to_the_coordinator_wherever_the_machines_names_lead(spread_job):
    pytest.importorskip("horovod", reason="NO HOROVOD HERE: `gradsieve build-horovod` builds it")
    job = spread_job
    for name in ("localhost", "leads-nowhere"):
        agents = [job.agent(host, "--once", machine=name) for host in ("h0", "h1")]
        coordinator = job.coordinator("--hosts", "h0,h1", "--gloo", "--", "python", "-c", ALLREDUCE)
        assert coordinator.wait(90) == 0, coordinator.text()
        assert sorted(coordinator.lines("[")) == ["[0] allreduce 3.0", "[1] allreduce 3.0"]
        assert [agent.wait() for agent in agents] == [0, 0]


def test_a_test_machine_has_its_name_and_leaves_this_ones_alone():
    before = socket.gethostname()
    said = subprocess.run([*on_a_machine_named("h7"), "hostname"], capture_output=True, text=True, check=True)
    assert (said.stdout, socket.gethostname()) == ("h7\n", before)
