"""What is built once is whole, is built by one process, and does not pile up."""

import multiprocessing
import os
import time

import pytest
from cluster import cache
from cluster.errors import ClusterError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gradsieve" / "cluster"


def write(text):
    return lambda folder: (folder / "built").write_text(text)


def refuse(folder):
    (folder / "half").write_text("")
    raise ClusterError("no")


def slowly(folder):
    time.sleep(0.5)
    (folder / "by").write_text(str(os.getpid()))


def build_slowly(_):
    return (cache.built_once("kind", "key", slowly) / "by").read_text()


def test_a_second_call_finds_what_the_first_one_built():
    first = cache.built_once("kind", "key", write("first"))
    assert cache.built_once("kind", "key", refuse) == first
    assert (first / "built").read_text() == "first"


def test_a_failed_build_leaves_nothing_that_counts_as_built(own_cache):
    with pytest.raises(ClusterError):
        cache.built_once("kind", "key", refuse)
    assert not (own_cache / "kind" / "key").exists()
    built = cache.built_once("kind", "key", write("second"))
    assert [path.name for path in built.iterdir()] == ["built"]
    assert sorted(path.name for path in built.parent.iterdir()) == ["key", "lock"]


def test_processes_that_ask_at_once_get_the_work_of_one():
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert len(set(pool.map(build_slowly, range(3)))) == 1


def test_only_the_ones_used_last_are_kept():
    for number, key in enumerate(["old", "used", "new"]):
        os.utime(cache.built_once("kind", key, write(key), keep=9), (number, number))
    used = cache.built_once("kind", "used", refuse)
    cache.built_once("kind", "newest", write("newest"), keep=2)
    assert sorted(path.name for path in used.parent.iterdir() if path.is_dir()) == ["newest", "used"]


def test_a_digest_changes_with_every_part_and_with_its_place():
    digests = [
        cache.digest(parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], [b"ab", "d"])
    ]
    assert len(set(digests)) == len(digests)
    assert cache.digest(["a", "b"]) == cache.digest([b"a", b"b"])
