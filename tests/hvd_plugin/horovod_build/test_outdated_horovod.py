"""A Horovod of an older recipe, or for another torch, is named before ranks use it."""

import json
import os
import subprocess
import sys

import pytest

from gradsieve_hvd.horovod_build.environment import find_torch
from gradsieve_hvd.horovod_build.installed import installed_facts, reason_to_rebuild
from gradsieve_hvd.horovod_build.patches import RECIPE
from gradsieve_hvd.horovod_build.repair import PROVENANCE

FRESH = {"recipe": str(RECIPE), "torch": find_torch().version}


@pytest.fixture
def folder_with_horovod(tmp_path, monkeypatch):
    """Returns a function that installs a Horovod of the given facts before all others."""

    def install(facts):
        info = tmp_path / "horovod-0.28.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
        if facts is not None:
            (info / PROVENANCE).write_text(json.dumps(facts))
        monkeypatch.syspath_prepend(tmp_path)
        return tmp_path

    return install


def test_an_older_recipe_is_named_with_the_remedy(folder_with_horovod):
    folder_with_horovod({**FRESH, "recipe": str(RECIPE - 1)})
    assert f"recipe {RECIPE - 1} of gradsieve" in reason_to_rebuild()
    assert "run: gradsieve build-horovod" in reason_to_rebuild()


def test_another_torch_is_named_with_both_versions(folder_with_horovod):
    folder_with_horovod({**FRESH, "torch": "2.1.0+cpu"})
    assert f"torch 2.1.0+cpu, here is {FRESH['torch']}" in reason_to_rebuild()


@pytest.mark.parametrize("recipe", [RECIPE, RECIPE + 1])
def test_a_recipe_as_new_as_ours_is_left_in_peace(folder_with_horovod, recipe):
    folder_with_horovod({**FRESH, "recipe": str(recipe)})
    assert installed_facts() == {**FRESH, "recipe": str(recipe)}
    assert reason_to_rebuild() is None


def test_a_horovod_that_others_built_is_left_in_peace(folder_with_horovod):
    folder_with_horovod(None)
    assert installed_facts() is None
    assert reason_to_rebuild() is None


@pytest.mark.parametrize(
    "command",
    [["run", "-np", "1", "--", "true"], ["coordinator", "--tls", "nowhere", "--hosts", "a", "--", "true"]],
)
def test_both_launchers_say_it_before_they_start(folder_with_horovod, tmp_path, command):
    folder = folder_with_horovod({**FRESH, "recipe": "1"})
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "gradsieve_hvd", *command],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stderr.startswith(f"gradsieve {command[0]}: Horovod was built by recipe 1 of gradsieve")
