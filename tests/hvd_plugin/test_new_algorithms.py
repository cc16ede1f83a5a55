"""An algorithm that is registered in one place is found wherever one is chosen by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import dataclasses, json, sys
import torch
from click.testing import CliRunner

from gradsieve import CompressionConfig, Selection
from gradsieve.config import register
from gradsieve.density import entries_to_keep
from gradsieve.kernels import as_accumulated


class FirstEntries:
    def select(self, accumulated, density, previous_threshold):
        source = as_accumulated(accumulated)
        indices = torch.arange(entries_to_keep(density, source.elements))
        return Selection(indices, source.tensor()[indices], 0.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FirstEntriesConfig(CompressionConfig):
    algorithm = "first_entries"

    def selector(self):
        return FirstEntries()


@register(title="first entries", kind="FirstEntries")
def first_entries(density=0.01, **settings):
    return FirstEntriesConfig(density=density, **settings)


import gradsieve, gradsieve_hvd
from gradsieve_hvd.experiments.bench.contenders import contenders
from gradsieve_hvd.experiments.simulate import training
from gradsieve_hvd.experiments.tasks import TASKS


def offered(module, *arguments):
    command = __import__(f"gradsieve_hvd.experiments.{module}.command", fromlist=["command"]).command
    return "first_entries" in CliRunner().invoke(command, [*arguments, "--help"]).output


config = gradsieve.Compression.first_entries(0.02)
steps = list(training(TASKS["digits"](), config, ranks=2, steps=2))
kept = [layer.kept / entries_to_keep(0.02, step.model.get_parameter(name).numel())
        for step in steps for rank in step.ranks for name, layer in rank.layers.items()]
found = {
    "in simulations": set(kept) == {1.0},
    "in gradsieve_hvd.Compression": gradsieve_hvd.Compression.first_entries(density=0.02).config == config,
    "among its names": "first_entries" in dir(gradsieve_hvd.Compression),
    "in jobs": gradsieve_hvd.job_compression().config == config,
    "in the demo": offered("demo"),
    "in bench convergence": offered("bench", "convergence"),
    "in bench selection": "first_entries" in contenders(1000, 0.01),
}
try:
    register(title="again", kind="Again")(first_entries)
except gradsieve.ConfigurationError as error:
    found["once only"] = "'first_entries' is registered already" in str(error)
print(json.dumps(found))
"""


def test_an_algorithm_that_is_registered_is_found_wherever_one_is_chosen():
    asked = {"GRADSIEVE_COMPRESSION": '{"algorithm": "FirstEntries", "densityPermille": 20}'}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=os.environ | asked, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().count("true") == 8
    assert "false" not in done.stdout, done.stdout


@pytest.mark.parametrize("package", ["gradsieve", "gradsieve_hvd"])
def test_an_algorithm_that_there_is_not_is_no_attribute(package):
    compression = __import__(package).Compression
    with pytest.raises(AttributeError, match="no algorithm 'tokp'; it has topk, group_topk, laplace"):
        compression.tokp  # noqa: B018 - to be looked up is enough
