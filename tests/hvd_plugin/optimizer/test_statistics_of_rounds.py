"""An optimizer says what it sent and where the time went, and writers hand that on."""

from __future__ import annotations

import csv
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from thread_ranks import ThreadRank, on_thread_ranks
from training import laplace, loss_of, sgd

import gradsieve_hvd
from gradsieve.errors import ConfigurationError
from gradsieve_hvd.optimizer.stats import OptimizerStats
from gradsieve_hvd.writers import CsvWriter, PrometheusWriter, TensorBoardWriter


def last_stats(exchange: str = "allgather", steps: int = 3, **settings: Any) -> list[OptimizerStats]:
    def work(rank: ThreadRank) -> OptimizerStats:
        rank.optimizer.stats()
        for step in range(steps):
            rank.optimizer.zero_grad()
            loss_of(rank.model, step, rank.rank).backward()
            rank.optimizer.step()
        return rank.optimizer.stats()

    return on_thread_ranks(2, work, exchange=exchange, optimizer=sgd, **settings)


@pytest.mark.parametrize("exchange", ["allgather", "ring", "scatter"])
def test_bytes_densities_and_seconds_of_the_last_round_are_told(exchange):
    for stats in last_stats(exchange):
        assert stats.step == 2
        sparse, dense = stats.buckets
        assert (sparse.path, sparse.elements, dense.path, dense.elements) == (exchange, 1400, "dense", 30)
        assert 0 < sparse.kept <= 140
        assert sparse.density == sparse.kept / 1400
        assert 0 < sparse.kept_energy < 1
        assert (dense.density, dense.kept_energy) == (1.0, 1.0)
        assert stats.payload_bytes == sparse.sent_bytes + dense.sent_bytes
        assert 0 < stats.payload_bytes < stats.dense_bytes == 4 * 1430  # 2 (P - 1) / P with two ranks
        parts = stats.selection_seconds + stats.encoding_seconds + stats.exposed_seconds
        assert 0 < parts <= stats.step_seconds
        assert stats.exchange_seconds == pytest.approx(sum(each.exchange_seconds for each in stats.buckets))


@pytest.mark.parametrize("exchange", ["dense", "bf16", "lowrank"])
def test_paths_that_select_nothing_keep_everything(exchange):
    for stats in last_stats(exchange):
        assert all(each.density == 1.0 for each in stats.buckets)
        assert stats.payload_bytes > 0


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int4"])
def test_short_values_halve_what_factors_send_and_nothing_else(values):
    compression = gradsieve_hvd.Compression.topk(0.1, min_elements=100, value_dtype=values)
    for stats, whole in zip(
        last_stats("lowrank", compression=compression), last_stats("lowrank"), strict=True
    ):
        (factors, dense), (whole_factors, whole_dense) = stats.buckets, whole.buckets
        # Up to eight messages of few values, with 24 bytes of headers each, which are not halved.
        half = whole_factors.sent_bytes / 2
        assert half - 4 * 24 < factors.sent_bytes < half + 8 * 24
        assert dense.sent_bytes == whole_dense.sent_bytes


def test_the_energy_that_is_kept_is_that_of_the_selected_entries():
    def work(rank: ThreadRank) -> tuple[float, float]:
        rank.optimizer.stats()
        gradient = torch.arange(1.0, 1201.0).view(20, 60)
        (rank.model[0].weight * gradient).sum().backward()
        rank.optimizer.synchronize()
        selected = rank.optimizer.synchronizer.reducer.states["0.weight"].layer.energies
        return selected, float(gradient.square().sum())

    for (kept, everything), expected in on_thread_ranks(2, work):
        assert everything == pytest.approx(expected, rel=1e-5)
        assert 0.1 < kept / everything < 0.3  # the largest 5 % of 1, 2, ... 1 200 have 14 % of it


def test_a_fixed_path_is_explained_by_its_setting():
    def explained(rank: ThreadRank) -> str:
        return str(rank.optimizer.explain())

    assert on_thread_ranks(1, explained, exchange="ring") == [
        "compressed gradients travel by 'ring': it was set (exchange=)"
    ]


def test_csv_has_a_line_per_bucket_and_is_gone_on_with(tmp_path):
    stats, file = last_stats()[0], tmp_path / "steps.csv"
    CsvWriter(file).write(stats)
    CsvWriter(file).write(stats)
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["bucket"] for row in rows] == 2 * ["", "bucket 0", "dense bucket 0"]
    assert float(rows[0]["payload_bytes"]) == stats.payload_bytes
    assert float(rows[1]["kept_energy"]) == pytest.approx(stats.buckets[0].kept_energy)


def test_csv_goes_on_without_a_line_that_was_cut_off_and_not_in_other_columns(tmp_path):
    stats, file = last_stats()[0], tmp_path / "steps.csv"
    CsvWriter(file).write(stats)
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    CsvWriter(file).write(stats)
    assert [row["bucket"] for row in csv.DictReader(file.read_text().splitlines())] == [
        *("", "bucket 0"),
        *("", "bucket 0", "dense bucket 0"),
    ]
    file.write_bytes(whole.partition(b"\r\n")[0])
    CsvWriter(file).write(stats)
    assert file.read_bytes() == whole
    file.write_bytes(b"step,loss\r\n1,2.5\r\n")
    with pytest.raises(ConfigurationError, match=r"steps\.csv has other columns"):
        CsvWriter(file).write(stats)
    assert file.read_bytes() == b"step,loss\r\n1,2.5\r\n"


def test_prometheus_reads_what_is_written(tmp_path):
    stats, file = last_stats()[0], tmp_path / "gradsieve.prom"
    writer = PrometheusWriter(file, rank=3)
    writer.write(stats)
    writer.write(stats)
    samples = {
        (sample.name, sample.labels.get("bucket")): sample
        for family in text_string_to_metric_families(file.read_text())
        for sample in family.samples
    }
    assert samples["gradsieve_optimizer_payload_bytes", None].value == stats.payload_bytes
    assert samples["gradsieve_optimizer_density", "bucket 0"].value == pytest.approx(stats.buckets[0].density)
    assert all(sample.labels["rank"] == "3" for sample in samples.values())


def test_tensorboard_gets_a_curve_of_each_figure():
    class Curves(dict):
        def add_scalar(self, name: str, value: float, step: int) -> None:
            self[name] = value, step

    stats, curves = last_stats(compression=laplace())[0], Curves()
    TensorBoardWriter(curves).write(stats)
    assert curves["gradsieve/payload_bytes"] == (stats.payload_bytes, 2)
    assert curves["gradsieve/bucket_0/density"] == (stats.buckets[0].density, 2)
    assert "gradsieve/bucket_0/kept_energy" in curves
