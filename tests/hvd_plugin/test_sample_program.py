"""The training program of the sample HorovodJobs trains on one machine, as its first lines say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("horovod", reason="NO HOROVOD HERE: `gradsieve build-horovod` builds it")
PROGRAM = Path(__file__).parents[2] / "manifests" / "samples" / "programs" / "digits.py"


@pytest.mark.parametrize("compression", ["", '{"algorithm": "GroupTopK", "densityPermille": 20}'])
def test_two_ranks_learn_the_digits_with_the_compression_of_the_job(tmp_path, compression):
    environment = os.environ | {"EPOCHS": "5", "GRADSIEVE_STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "gradsieve_hvd", "run", "-np", "2", "--", "python", str(PROGRAM)],
        env=environment | ({"GRADSIEVE_COMPRESSION": compression} if compression else {}),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks go on from step 0" in done.stdout
    (accuracy,) = re.findall(r"accuracy ([\d.]+) %", done.stdout)
    assert float(accuracy) > 85
