"""Install the wheel into the running environment and prove that it loads."""

import subprocess
import sys
from pathlib import Path

from gradsieve.errors import BuildError

_PROOF = """
import horovod.torch as hvd
missing = [name for name in ("mpi", "gloo") if not getattr(hvd, name + "_built")()]
raise SystemExit("built without " + ", ".join(missing) if missing else 0)
"""


def prove_loads() -> None:
    """Import horovod.torch in a process of its own.

    Raises:
        BuildError: it does not load, or lacks MPI or Gloo.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROOF], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        raise BuildError(
            f"Horovod is installed but does not load: {done.stderr.strip()[-800:]}\n"
            "build it anew with: gradsieve build-horovod --force"
        )


def install(wheel: Path) -> None:
    """Install `wheel` in place of any other Horovod and prove that it loads.

    Raises:
        BuildError: pip refuses, or `horovod.torch` does not load afterwards.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--force-reinstall",
    ]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"installing {wheel.name} failed: {(done.stderr or done.stdout).strip()[-800:]}")
    prove_loads()
