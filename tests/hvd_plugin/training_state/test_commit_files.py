"""A commit file that is not whole is never taken for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradsieve_hvd.training_state import files
from gradsieve_hvd.training_state.header import HEADER_BYTES, Commit, Unusable
from gradsieve_hvd.training_state.store import Folder

COMMIT = Commit(7, 2, 1234, 1, 4)
SHARED: dict[str, Any] = {"weights": torch.arange(50.0), "name": "x", "nested": [1, (2.5, None)]}
OWN = {"residual": torch.full((30,), 0.5)}


def written(folder: Path) -> Path:
    path = folder / "commit"
    files.write(path, COMMIT, SHARED, OWN)
    return path


def read_whole(path: Path) -> None:
    opened = files.Opened(path)
    opened.load_shared()
    opened.load_own()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    opened = files.Opened(written(tmp_path))
    assert opened.header.commit == COMMIT
    shared, own = opened.load_shared(), opened.load_own()
    assert torch.equal(shared["weights"], SHARED["weights"])
    assert shared["nested"] == SHARED["nested"]
    assert torch.equal(own["residual"], OWN["residual"])


def test_a_longer_older_file_leaves_nothing_behind(tmp_path: Path) -> None:
    fresh = written(tmp_path).read_bytes()
    (tmp_path / "commit").write_bytes(b"x" * (2 * len(fresh)))
    assert len(written(tmp_path).read_bytes()) == len(fresh)
    files.Opened(tmp_path / "commit").load_own()


def test_torchs_own_checksums_are_on_again_afterwards(tmp_path: Path) -> None:
    written(tmp_path)
    assert torch.serialization.get_crc32_options()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_truncated_or_changed_file_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    whole = written(tmp_path).read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    spoiled = bytearray(whole)
    spoiled[at] ^= data.draw(st.integers(1, 255))
    for content in (whole[:at], bytes(spoiled)):
        (tmp_path / "commit").write_bytes(content)
        with pytest.raises(Unusable):
            read_whole(tmp_path / "commit")


def test_a_file_with_code_in_it_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    path = tmp_path / "commit"
    files.write(path, COMMIT, {"weights": Code()}, OWN)
    with pytest.raises(Unusable, match="cannot be loaded"):
        files.Opened(path).load_shared()
    assert not (tmp_path / "ran").exists()


def test_a_copy_without_the_shared_part_keeps_the_own_part(tmp_path: Path) -> None:
    path, copied = written(tmp_path), tmp_path / "copy"
    with path.open("rb") as file:
        files.copy(file, copied, with_shared=False)
    opened = files.Opened(copied)
    assert opened.header.commit == COMMIT
    assert opened.header.shared.size == 0
    assert torch.equal(opened.load_own()["residual"], OWN["residual"])
    assert copied.stat().st_size == HEADER_BYTES + opened.header.own.size


def test_a_commit_that_its_rank_replaces_while_others_look_is_not_reported(tmp_path: Path) -> None:
    folder = Folder(tmp_path, rank=0, keep=2)
    commits = [Commit(step, 2, 1234, 1, 4) for step in (6, 7)]
    for commit in commits:
        files.write(folder.path_of(commit), commit, SHARED, OWN)
    looking = folder.headers()
    path, _ = next(looking)
    assert path == folder.path_of(commits[0])
    folder.path_of(commits[1]).unlink()
    assert list(looking) == []


def test_of_ranks_that_are_not_here_any_more_the_newest_commit_up_to_a_step_stays(tmp_path: Path) -> None:
    for rank, steps in ((0, (8, 9)), (1, (7, 8, 9)), (12, (6, 7))):
        for step in steps:
            (tmp_path / f"step-{step:012d}.rank-{rank}.commit").touch()
        (tmp_path / f"rank-{rank}.draft").touch()
    (tmp_path / "notes").touch()
    folder = Folder(tmp_path, rank=0, keep=2)
    folder.forget_others({0}, but_up_to=8)
    mine = {"step-000000000008.rank-0.commit", "step-000000000009.rank-0.commit", "rank-0.draft", "notes"}
    others = {"step-000000000008.rank-1.commit", "step-000000000007.rank-12.commit"}
    assert {path.name for path in tmp_path.iterdir()} == mine | others
    folder.forget_others({0})
    assert {path.name for path in tmp_path.iterdir()} == mine
