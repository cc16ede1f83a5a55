"""The command line with which the coordinator starts mpirun, for Open MPI 5 and 4."""

from pathlib import Path

import pytest

from gradsieve.errors import LaunchError
from gradsieve_hvd.control.messages import Place, Roster
from gradsieve_hvd.control.mpi_ranks import mpirun_arguments, mpirun_environment, mpirun_major

ROSTER = Roster(1, ("true",), "MPI", (Place("a100-0", "u", 2), Place("t4-0", "v", 1)))


@pytest.mark.parametrize(("major", "agent"), [(5, "plm_ssh_agent"), (4, "plm_rsh_agent")])
def test_hosts_and_launch_agent_are_named_in_each_versions_words(major, agent):
    arguments = mpirun_arguments(ROSTER, Path("/tmp/launch"), major=major)
    assert arguments[:4] == ["-np", "3", "--host", "agent-a100-0:2,agent-t4-0:1"]
    place = arguments.index(agent)
    assert arguments[place - 1 : place + 2] == [
        "--prtemca" if major == 5 else "--mca",
        agent,
        "sh /tmp/launch",
    ]
    assert ("--tag-output" in arguments) == (major == 4)


def test_the_users_own_settings_win():
    given = {"OMPI_MCA_pml": "ucx", "SHELL": "/bin/sh", "TMPDIR": "/x"}
    made = mpirun_environment(given, folder=Path("/f"), socket=Path("/f/s"), root=False)
    own = {"TMPDIR": "/f", "GRADSIEVE_LAUNCH_SOCKET": "/f/s"}
    assert made == {"OMPI_MCA_pml": "ucx", "SHELL": "/bin/sh", **own}


@pytest.mark.parametrize(
    ("said", "major"),
    [("mpirun (Open MPI) 5.0.11", 5), ("mpirun.openmpi (OpenRTE) 4.1.4", 4), ("HYDRA 4.1", None)],
)
def test_the_version_is_asked(tmp_path, said, major):
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    if major is None:
        with pytest.raises(LaunchError, match="is no Open MPI"):
            mpirun_major(str(program))
    else:
        assert mpirun_major(str(program)) == major
