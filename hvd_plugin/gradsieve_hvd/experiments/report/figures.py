"""A report's figures, and the tables that show them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from rich import box
from rich.table import Table

from .counting import Questions
from .fits import LayerFit
from .importance import SHARES, BatchRecord
from .layer import LayerStep
from .layered import LayeredStep
from .training import Report

Row = dict[str, Any]
_Name = TypeVar("_Name", int, str)
_LEVELS = (0.1, 0.5, 0.9)
_MOST_EPOCHS_SHOWN = 10
_FIT_FIGURES = ("laplace", "normal", "guess_ratio")


def fit_rows(fits: Sequence[LayerFit]) -> list[Row]:
    """Return a row per layer: medians over the steps looked at."""
    rows = []
    for layer in _in_order(fit.layer for fit in fits):
        own = [fit for fit in fits if fit.layer == layer]
        row: Row = {"layer": layer, "elements": own[0].elements, "steps": len(own)}
        for kind in ("fresh", "accumulated"):
            for figure in _FIT_FIGURES:
                row[f"{kind}_{figure}"] = statistics.median(
                    getattr(getattr(fit, kind), figure) for fit in own
                )
        rows.append(row)
    return rows


def selection_rows(selections: Sequence[LayerStep], band: tuple[float, float]) -> list[Row]:
    """Return a row per layer and start ("cold": no threshold; "warm": the last step's)."""
    rows = []
    for layer in _in_order(selection.layer for selection in selections):
        own = [selection for selection in selections if selection.layer == layer]
        ratios = [selection.kept_ratio for selection in own]
        for start, asked in (("cold", asked_cold(own)), ("warm", asked_warm(own))):
            if not asked:
                continue
            counts, passes = [each.counts for each in asked], [each.passes for each in asked]
            row: Row = {"layer": layer, "start": start, "selections": len(asked)}
            row |= {"counts_median": statistics.median(counts), "counts_mean": statistics.mean(counts)}
            row |= {"counts_max": max(counts), "passes_mean": statistics.mean(passes)}
            row |= {"kept_least": min(ratios), "kept_median": statistics.median(ratios)}
            row |= {"kept_most": max(ratios), "in_band": share_in_band(own, band)}
            rows.append(row)
    return rows


def sample_rows(batches: Sequence[BatchRecord]) -> list[Row]:
    """Return a row per epoch: quantiles of its samples' losses (nats), per share the steps' mean cosine."""
    rows = []
    for epoch in _in_order(batch.epoch for batch in batches):
        own = [batch for batch in batches if batch.epoch == epoch]
        losses = torch.cat([batch.losses for batch in own])
        levels = losses.quantile(torch.tensor(_LEVELS)).tolist()
        row: Row = {"epoch": epoch + 1, "samples": losses.numel(), "loss_mean": float(losses.mean())}
        row |= {f"loss_p{100 * level:.0f}": value for level, value in zip(_LEVELS, levels, strict=True)}
        for number, share in enumerate(SHARES):
            row[f"cosine_top{100 * share:.0f}"] = statistics.mean(batch.cosines[number] for batch in own)
        rows.append(row)
    return rows


def layered_rows(records: Sequence[LayeredStep], band: tuple[float, float]) -> list[Row]:
    """Return a row per layer: the range of its densities, the last one, and the range of its thresholds."""
    rows = []
    for layer in _in_order(record.layer for record in records):
        own = [record for record in records if record.layer == layer]
        densities, thresholds = [each.density for each in own], [each.threshold for each in own]
        row: Row = {"layer": layer, "density_least": min(densities), "density_most": max(densities)}
        row |= {"density_last": densities[-1], "threshold_least": min(thresholds)}
        row |= {"threshold_most": max(thresholds), "in_band": share_in_band(own, band)}
        rows.append(row)
    return rows


def asked_cold(selections: Iterable[LayerStep]) -> list[Questions]:
    """Return what selections ask without a threshold to start from."""
    return [selection.cold for selection in selections]


def asked_warm(selections: Iterable[LayerStep]) -> list[Questions]:
    """Return what selections ask with the last step's threshold."""
    return [selection.warm for selection in selections if selection.warm is not None]


def share_in_band(selections: Sequence[LayerStep | LayeredStep], band: tuple[float, float]) -> float:
    """Return the fraction of selections whose kept/k the band accepts."""
    return sum(band[0] <= each.kept_ratio <= band[1] for each in selections) / len(selections)


def all_figures(report: Report) -> Row:
    """Return everything as plain JSON values: ``rows`` is what the tables show, the rest is step by step."""
    return {
        "config": report.config.describe(),
        "accuracy": report.accuracy,
        "rows": {
            "fits": fit_rows(report.fits),
            "selections": selection_rows(report.selections, report.config.band),
            "samples": sample_rows(report.batches),
            "layered": layered_rows(report.layered, report.config.band),
        },
        "fits": [dataclasses.asdict(fit) for fit in report.fits],
        "selections": [
            dataclasses.asdict(each) | {"kept_ratio": each.kept_ratio} for each in report.selections
        ],
        "layered": [dataclasses.asdict(each) for each in report.layered],
        "batches": [
            {"step": each.step, "loss": float(each.losses.mean()), "cosines": list(each.cosines)}
            for each in report.batches
        ],
    }


def tables(report: Report) -> list[Table]:
    """Return the tables, each at most 80 columns wide."""
    fits = _table("Wasserstein-1 distance / mean magnitude", "layer")
    for kind in ("fresh", "accum."):
        for name in ("Laplace", "normal", "guess/k"):
            fits.add_column(f"{kind}\n{name}", justify="right")
    for row in fit_rows(report.fits):
        figures = [row[f"{kind}_{name}"] for kind in ("fresh", "accumulated") for name in _FIT_FIGURES]
        fits.add_row(row["layer"], *(f"{figure:.3f}" for figure in figures))
    asked = _table("What a selection asks, and what it keeps", "layer", "start")
    for name in (
        "counts\nmedian",
        "\nmost",
        "passes\nmean",
        "kept/k\nleast",
        "\nmedian",
        "\nmost",
        "in band",
    ):
        asked.add_column(name, justify="right")
    for row in selection_rows(report.selections, report.config.band):
        asked.add_row(
            row["layer"], row["start"], f"{row['counts_median']:g}", str(row["counts_max"]),
            f"{row['passes_mean']:.2f}", f"{row['kept_least']:.2f}", f"{row['kept_median']:.2f}",
            f"{row['kept_most']:.2f}", f"{100 * row['in_band']:.1f} %",
        )  # fmt: skip
    samples = _table("Losses of samples; cosine of the top x % losses' gradient with the whole", "epoch")
    for name in ("loss\n10 %", "\nmedian", "\n90 %", *(f"cosine\n{100 * s:.0f} %" for s in SHARES)):
        samples.add_column(name, justify="right")
    for row in _spread(sample_rows(report.batches)):
        losses = [f"{row[f'loss_p{100 * level:.0f}']:.1e}" for level in _LEVELS]
        cosines = [f"{row[f'cosine_top{100 * share:.0f}']:.3f}" for share in SHARES]
        samples.add_row(str(row["epoch"]), *losses, *cosines)
    layered = _table("The layered rule: densities in %, thresholds", "layer")
    for name in ("density\nleast", "\nmost", "\nlast", "threshold\nleast", "\nmost", "in band"):
        layered.add_column(name, justify="right")
    for row in layered_rows(report.layered, report.config.band):
        densities = [f"{100 * row[f'density_{name}']:.2f}" for name in ("least", "most", "last")]
        thresholds = [f"{row[f'threshold_{name}']:.1e}" for name in ("least", "most")]
        layered.add_row(row["layer"], *densities, *thresholds, f"{100 * row['in_band']:.1f} %")
    return [fits, asked, layered, samples] if report.layered else [fits, asked, samples]


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in names:
        table.add_column(name, no_wrap=True)
    return table


def _spread(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, or where they are many an even choice with the first and the last."""
    if len(rows) <= _MOST_EPOCHS_SHOWN:
        return list(rows)
    last = _MOST_EPOCHS_SHOWN - 1
    return [rows[round(number * (len(rows) - 1) / last)] for number in range(_MOST_EPOCHS_SHOWN)]


def _in_order(names: Iterable[_Name]) -> list[_Name]:
    return list(dict.fromkeys(names))
