"""A report's plots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from .counting import Questions
from .figures import asked_cold, asked_warm, sample_rows
from .importance import SHARES
from .training import Report

_COLOURS = ("#1b6ca8", "#d95f02", "#4d4d4d", "#7570b3", "#1b9e77", "#e7298a")
_COLD, _WARM = "#8da0cb", "#fc8d62"
_KINDS = ("fresh", "accumulated")
_DPI = 120


def plot_fits(report: Report, conditions: str, path: Path) -> None:
    """Above: the last step's elements beside the fitted distributions. Below: the distances by epoch."""
    figure = _figure(10, 7)
    above, below = figure.subplots(2, 2, sharey="row")
    for axes, kind in zip(above, _KINDS, strict=True):
        shape = report.shapes[kind]
        seen = shape.sample > 0
        axes.semilogy(shape.points[seen], shape.sample[seen], ".", color="#4d4d4d", label="gradient")
        axes.semilogy(shape.points, shape.laplace, color=_COLOURS[0], label="fitted Laplace")
        axes.semilogy(shape.points, shape.normal, "--", color=_COLOURS[1], label="fitted normal")
        axes.set_ylim(1e-7, 10)
        axes.set_xlabel("element / mean magnitude")
        axes.set_title(f"{kind} gradient, all compressed layers, last step")
    above[0].set_ylabel("density")
    for axes, kind in zip(below, _KINDS, strict=True):
        for number, layer in enumerate(dict.fromkeys(fit.layer for fit in report.fits)):
            own = [fit for fit in report.fits if fit.layer == layer]
            epochs = [(fit.step + 1) / report.steps_per_epoch for fit in own]
            for figure_name, style in (("laplace", "o-"), ("normal", "s--")):
                values = [getattr(getattr(fit, kind), figure_name) for fit in own]
                label = f"{layer}, {'Laplace' if figure_name == 'laplace' else 'normal'}"
                axes.plot(epochs, values, style, color=_COLOURS[number], markersize=4, label=label)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("epoch")
        axes.set_title(f"distance of the {kind} gradient")
    below[0].set_ylabel("Wasserstein-1 / mean magnitude")
    above[0].legend(fontsize="small")
    below[1].legend(fontsize="small", loc="upper right")  # the accumulated gradient's distances are small
    _save(figure, conditions, path)


def plot_selections(report: Report, conditions: str, path: Path) -> None:
    """How many counts and passes a selection asks for, and kept/k over time with the band."""
    figure = _figure(10, 6.5)
    counts, passes, kept = figure.subplot_mosaic([["counts", "passes"], ["kept", "kept"]]).values()
    _bars(
        counts, report, lambda asked: asked.counts, "counts per selection (of all elements or of listed ones)"
    )
    _bars(passes, report, lambda asked: asked.passes, "passes over all elements per selection, as asked")
    counts.set_ylabel("share of selections, %")
    low, high = report.config.band
    kept.axhspan(low, high, color="#b8e0b8", alpha=0.5, label=f"band {low:g} to {high:g}")
    for number, (layer, own) in enumerate(_by_layer(report.selections).items()):
        kept.plot(
            [each.step for each in own],
            [each.kept_ratio for each in own],
            ".-",
            color=_COLOURS[number],
            linewidth=0.7,
            markersize=4,
            label=layer,
        )
    kept.set_ylim(min(0.7, kept.get_ylim()[0]), max(1.4, kept.get_ylim()[1]))
    kept.set_xlabel("step")
    kept.set_ylabel("kept / k")
    kept.legend(fontsize="small", ncols=4, loc="upper right")
    _save(figure, conditions, path)


def plot_thresholds(report: Report, conditions: str, path: Path) -> None:
    """Left: the magnitude from which on each layer sends, by rule. Right: the layered rule's densities."""
    figure = _figure(10, 4.2)
    axes, densities = figure.subplots(1, 2)
    for number, (layer, own) in enumerate(_by_layer(report.selections).items()):
        label = f"{layer} ({own[0].elements:,}), Laplace"
        steps, thresholds = [each.step for each in own], [each.threshold for each in own]
        axes.semilogy(steps, thresholds, color=_COLOURS[number], linewidth=1.2, label=label)
    for number, (layer, own) in enumerate(_by_layer(report.layered).items()):
        steps, thresholds = [each.step for each in own], [each.threshold for each in own]
        colour = _COLOURS[number]
        axes.semilogy(steps, thresholds, "--", color=colour, linewidth=1, label=f"{layer}, layered")
        kept = [100 * each.kept / each.elements for each in own]
        densities.plot(steps, kept, ".", color=colour, markersize=3, label=f"{layer}: sent")
        asked = [100 * each.density for each in own]
        densities.step(steps, asked, where="post", color=colour, label=f"{layer}: asked for")
    axes.set_ylabel("threshold (accumulated gradient)")
    axes.set_title("thresholds")
    densities.set_ylabel("kept / all, %")
    densities.set_ylim(bottom=0)
    densities.set_title("densities, layered rule")
    for each in (axes, densities):
        each.set_xlabel("step")
        each.legend(fontsize="small")
    _save(figure, conditions, path)


def plot_samples(report: Report, conditions: str, path: Path) -> None:
    """Left: the samples' losses by epoch. Right: whether the largest ones' gradient points like the whole."""
    figure = _figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    epochs = list(dict.fromkeys(batch.epoch for batch in report.batches))
    losses = [
        torch.cat([batch.losses for batch in report.batches if batch.epoch == epoch]).clamp(min=1e-8).log10()
        for epoch in epochs
    ]
    drawn = left.violinplot(
        [each.tolist() for each in losses],
        [e + 1 for e in epochs],
        widths=0.9,
        showmedians=True,
        showextrema=False,
    )
    for body in drawn["bodies"]:
        body.set_facecolor(_COLD)
        body.set_alpha(0.7)
    drawn["cmedians"].set_color(_COLOURS[1])
    left.yaxis.set_major_formatter(lambda value, _: f"$10^{{{value:.0f}}}$")
    left.set_xlabel("epoch")
    left.set_ylabel("loss of a sample, nats")
    left.set_title("sample losses (line: median; below 1e-8 drawn there)")
    rows = sample_rows(report.batches)
    for number, share in enumerate(SHARES):
        name = f"{100 * share:.0f}"
        right.plot(
            [row["epoch"] for row in rows],
            [row[f"cosine_top{name}"] for row in rows],
            "o-",
            color=_COLOURS[number],
            markersize=4,
            label=f"top {name} %",
        )
    right.set_ylim(0, 1.02)
    right.set_xlabel("epoch")
    right.set_ylabel("cosine with the whole batch's gradient")
    right.set_title("gradient of the samples with the largest losses")
    right.legend(fontsize="small", loc="lower right")
    _save(figure, conditions, path)


def _bars(axes: Any, report: Report, figure_of: Callable[[Questions], int], label: str) -> None:
    starts = {"cold": asked_cold(report.selections), "warm": asked_warm(report.selections)}
    for offset, (start, asked), colour in zip((-0.2, 0.2), starts.items(), (_COLD, _WARM), strict=True):
        seen = Counter(map(figure_of, asked))
        heights = [100 * number / len(asked) for number in seen.values()]
        axes.bar([each + offset for each in seen], heights, 0.4, color=colour, label=f"{start} start")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(label)
    axes.legend(fontsize="small")


def _by_layer(records: Iterable[Any]) -> dict[str, list[Any]]:
    layers: dict[str, list[Any]] = {}
    for each in records:
        layers.setdefault(each.layer, []).append(each)
    return layers


def _figure(width: float, height: float) -> Any:
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, conditions: str, path: Path) -> None:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
    figure.suptitle(conditions, fontsize="medium")
    figure.savefig(path, dpi=_DPI)


PLOTS: dict[str, Callable[[Report, str, Path], None]] = {
    "fits.png": plot_fits,
    "selections.png": plot_selections,
    "thresholds.png": plot_thresholds,
    "samples.png": plot_samples,
}
