"""A program in a HorovodJob compresses as the job asks."""

import json

import pytest

import gradsieve_hvd
from gradsieve_hvd import Compression, ConfigurationError, job_compression

NO_HOROVOD = "NO HOROVOD HERE: `gradsieve build-horovod` builds it"


@pytest.fixture
def asked(monkeypatch):
    def ask(**compression):
        monkeypatch.setenv("GRADSIEVE_COMPRESSION", json.dumps(compression))

    monkeypatch.delenv("GRADSIEVE_COMPRESSION", raising=False)
    return ask


def test_outside_of_a_job_the_program_s_own_holds(asked):
    own = Compression.laplace(density=0.05)
    assert job_compression(own) is own


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ("TopK", "topk"),
        ("GroupTopK", "group_topk"),
        ("Sampled", "sampled"),
        ("Laplace", "laplace"),
        ("Layered", "layered"),
        ("Importance", "importance"),
    ],
)
def test_a_job_names_the_algorithm_and_the_density(asked, algorithm, name):
    asked(algorithm=algorithm, densityPermille=20)
    compressor = job_compression(Compression.topk(density=0.5), timeout_seconds=7.0)
    assert compressor.config.algorithm == name
    assert compressor.config.density == 0.02
    assert compressor.timeout_seconds == 7.0


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({"minDensityPermille": 2}, (0.002, 0.1)),
        ({"maxDensityPermille": 50}, (0.001, 0.05)),
        ({"densityPermille": 200, "minDensityPermille": 20}, (0.02, 0.2)),
    ],
)
def test_a_job_gives_bounds(asked, given, bounds):
    asked(algorithm="Layered", **given)
    assert job_compression().config.bounds == bounds


def test_densities_alone_are_laid_over_the_program_s_own(asked):
    asked(densityPermille=20)
    own = Compression.laplace(density=0.05, band=(0.5, 2.0))
    found = job_compression(own)
    assert (found.config.algorithm, found.config.density, found.config.band) == ("laplace", 0.02, (0.5, 2.0))
    assert own.config.density == 0.05


def test_densities_without_anything_to_lay_them_over_are_refused(asked):
    asked(densityPermille=20)
    with pytest.raises(ConfigurationError, match="densityPermille"):
        job_compression()


def test_an_algorithm_of_a_newer_operator_is_named_as_unknown(asked):
    asked(algorithm="Quantum")
    with pytest.raises(ConfigurationError, match="'Quantum' is not known"):
        job_compression()


@pytest.mark.parametrize(("algorithm", "name"), [("None", "NoneCompressor"), ("FP16", "FP16Compressor")])
def test_what_sends_everything_is_horovod_s_own(asked, algorithm, name):
    pytest.importorskip("horovod.torch", reason=NO_HOROVOD)
    asked(algorithm=algorithm)
    assert job_compression(Compression.topk()).__name__ == name


def test_without_job_and_default_nothing_is_compressed(asked):
    pytest.importorskip("horovod.torch", reason=NO_HOROVOD)
    assert gradsieve_hvd.job_compression().__name__ == "NoneCompressor"
