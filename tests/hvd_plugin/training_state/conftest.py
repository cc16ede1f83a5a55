from __future__ import annotations

from pathlib import Path

from real_ranks import shared_jobs

outcomes = shared_jobs(Path(__file__).parent)
