"""The real ranks that the tests of this folder share."""

from pathlib import Path

from real_ranks import shared_jobs

outcomes = shared_jobs(Path(__file__).parent)
