"""`gradsieve build-horovod` from the outside; the build itself is what the set-up of these tests has run."""

import os
from dataclasses import replace

import pytest
from click.testing import CliRunner

from gradsieve.errors import BuildError
from gradsieve_hvd.horovod_build import cache, installed
from gradsieve_hvd.horovod_build.command import command
from gradsieve_hvd.horovod_build.environment import detect
from gradsieve_hvd.horovod_build.pipeline import Build
from gradsieve_hvd.horovod_build.progress import LineProgress

WHEEL = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"


def build() -> Build:
    return Build(detect(), os.environ, LineProgress(lambda _line: None), 60.0)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def kept_wheel(own_cache):
    entry = build().entry
    entry.mkdir(parents=True)
    (entry / WHEEL).write_bytes(b"kept")
    return entry / WHEEL


def test_a_kept_wheel_is_taken_without_building(kept_wheel, tmp_path):
    done = CliRunner().invoke(command, ["--no-install", "--wheel-dir", str(tmp_path / "wheels")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "wheels" / WHEEL).read_bytes() == b"kept"
    assert str(kept_wheel) in done.output.replace("\n", "")


def test_what_it_builds_for_is_said_first(kept_wheel):
    first = CliRunner().invoke(command, ["--no-install"]).output.splitlines()[0]
    assert first.startswith("build-horovod: for cp3")
    assert "torch 2." in first
    assert "MPI" in first


def test_everything_missing_is_said_before_anything_is_fetched(own_cache, monkeypatch):
    monkeypatch.setattr(
        "gradsieve_hvd.horovod_build.pipeline.build_problems", lambda *_: ["no compiler", "no space"]
    )
    with pytest.raises(BuildError, match="no compiler\nno space"):
        CliRunner().invoke(command, ["--no-install"], catch_exceptions=False)
    assert not own_cache.exists()


def test_force_does_not_take_the_kept_wheel(kept_wheel, monkeypatch):
    monkeypatch.setattr("gradsieve_hvd.horovod_build.pipeline.build_problems", lambda *_: ["asked to build"])
    with pytest.raises(BuildError, match="asked to build"):
        CliRunner().invoke(command, ["--no-install", "--force"], catch_exceptions=False)


def test_a_wheel_that_another_build_finished_meanwhile_is_taken(own_cache, monkeypatch):
    wanted = build()
    monkeypatch.setattr("gradsieve_hvd.horovod_build.pipeline.build_problems", lambda *_: finish())

    def finish() -> list[str]:
        wanted.entry.mkdir(parents=True)
        (wanted.entry / WHEEL).write_bytes(b"theirs")
        return []

    assert wanted.wheel() == wanted.entry / WHEEL


def test_an_environment_without_write_access_is_told_so(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder can be made in a file, not even by root")
    closed = replace(detect(), site_packages=tmp_path / "file" / "site-packages")
    monkeypatch.setattr("gradsieve_hvd.horovod_build.command.detect", lambda: closed)
    with pytest.raises(BuildError, match="no right to write at .*: use a virtual environment"):
        CliRunner().invoke(command, [], catch_exceptions=False)


def test_another_environments_horovod_does_not_count_as_installed():
    facts = build().facts
    assert not installed.is_installed({**facts, "torch": "0.0.1"})


def test_the_entry_lies_in_the_users_cache(own_cache):
    assert build().entry.parent == cache.cache_root(os.environ) == own_cache / "gradsieve" / "horovod"
