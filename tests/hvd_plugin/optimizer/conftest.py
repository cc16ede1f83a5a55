from __future__ import annotations

from pathlib import Path

import pytest
import torch
from real_ranks import shared_jobs

outcomes = shared_jobs(Path(__file__).parent)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
