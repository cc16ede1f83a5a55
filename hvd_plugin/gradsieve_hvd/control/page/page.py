"""What a person wants to see of one job: where it is, what a step is made of, who is slow, and why."""

from __future__ import annotations

import heapq
import html
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files

from gradsieve_hvd.control.history import Point
from gradsieve_hvd.control.job_state_machine import JobStateMachine
from gradsieve_hvd.control.page import charts
from gradsieve_hvd.control.page.wording import duration, number, share, size
from gradsieve_hvd.control.telemetry import RankTelemetry, Telemetry

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)
MOST_RANKS = 64
_MOST_HOSTS = 256
_REFRESH_SECONDS = 5
_NOTEWORTHY = 0.05
_STYLE = (files("gradsieve_hvd.control.page") / "style.css").read_text(encoding="utf-8")


def page(job: JobStateMachine, name: str, started_at: str | None) -> str:
    """Return the page.

    Args:
        job: to show; neither its command nor its environment is.
        name: of the job.
        started_at: when the ranks were started, RFC 3339; None before.
    """
    parts = [_head(job, name, started_at), *_training(job), _hosts(job)]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f'<title>{_text(name)}: {job.state}</title><link rel="icon" href="data:,"><style>{_STYLE}</style>'
        f"<main>{''.join(parts)}"
        '<footer><a href="/metrics">metrics</a> <a href="/v1/status">status</a></footer></main></html>\n'
    )


def _head(job: JobStateMachine, name: str, started_at: str | None) -> str:
    since = f", ranks started {_text(started_at)}" if started_at else ""
    return (
        f'<header><h1>{_text(name)}</h1><p><b class="state {job.state}">{job.state}</b> '
        f"{_text(job.message)}{since}</p></header>"
    )


def _training(job: JobStateMachine) -> Iterator[str]:
    sample = job.measured.telemetry
    if sample is None:
        yield '<section id="training"><p>No step has been reported yet.</p></section>'
    else:
        yield _figures(sample, job.measured.age or 0.0)
        yield _plan(job, sample)
        yield _step(sample)
        if sample.ranks:
            yield _ranks(sample.ranks)
    now, points = job.measured.history_until_now()
    if points:
        yield _hour(points, now)


def _figures(sample: Telemetry, age: float) -> str:
    numbers = sample.numbers
    shown = {"step": f"{sample.step:,}".replace(",", "\u202f")}
    if "loss" in numbers:
        shown["loss"] = number(numbers["loss"])
    shown["step time"] = duration(numbers["stepSeconds"])
    dense, sent = numbers.get("denseBytesPerStep", 0.0), numbers.get("wireBytesPerStep")
    if dense and sent is not None:
        shown["bytes saved"] = share(1 - sent / dense)
        shown["sent in a step"] = size(sent)
    if "committedStep" in numbers:
        shown["last commit at step"] = f"{numbers['committedStep']:.0f}"
    shown["last heard of"] = f"{duration(age)} ago"
    return f'<section id="figures"><dl class="tiles">{_pairs(shown)}</dl></section>'


def _plan(job: JobStateMachine, sample: Telemetry) -> str:
    told = {} if job.plan is None else job.plan.fields
    applied = int(sample.numbers.get("appliedPlanGeneration", 0))
    shown = {"mode": sample.mode or "Synchronous"}
    if "densityPermille" in sample.numbers:
        shown["density"] = share(sample.numbers["densityPermille"] / 1000)
    if job.plan is not None:
        late = "" if applied == job.plan.generation else f", ranks follow {applied}"
        shown["plan"] = f"{job.plan.generation}{late}"
    why = told.get("evidence")
    reason = f"<p><b>{_text(told.get('reason') or 'Plan')}</b>: {_text(why)}</p>" if why else ""
    return f'<section id="plan"><h2>Plan</h2><dl class="tiles">{_pairs(shown)}</dl>{reason}</section>'


def _step(sample: Telemetry) -> str:
    numbers = sample.numbers
    whole = numbers["stepSeconds"]
    waiting = min(numbers["waitSeconds"], whole)
    selecting = min(numbers.get("selectSeconds", 0.0), whole - waiting)
    parts = {"computing": whole - waiting - selecting, "selecting": selecting, "waiting": waiting}
    if "selectSeconds" not in numbers:
        del parts["selecting"]
    legend = "".join(
        f'<li><i class="{name}"></i>{name} <b>{duration(seconds)}</b></li>' for name, seconds in parts.items()
    )
    bars = "".join(_bar(name, seconds, whole) for name, seconds in parts.items())
    return (
        '<section id="split"><h2>A step, mean over the ranks</h2>'
        f'<div class="bar">{bars}</div><ul class="legend">{legend}</ul></section>'
    )


def _ranks(ranks: Sequence[RankTelemetry]) -> str:
    """Return bars of the slowest ranks, in the order of their numbers."""
    slowest = heapq.nlargest(MOST_RANKS, ranks, key=lambda rank: rank.step_seconds)
    longest = max(rank.step_seconds + (rank.wait_seconds or 0.0) for rank in slowest)
    rows = "".join(_rank(rank, longest) for rank in sorted(slowest, key=lambda rank: rank.rank))
    more = len(ranks) - len(slowest)
    rest = f"<p>{more} faster ranks are not shown.</p>" if more else ""
    return (
        '<section id="ranks"><h2>Ranks: own work and waiting in a step</h2>'
        f"<table><tbody>{rows}</tbody></table>{rest}</section>"
    )


def _rank(rank: RankTelemetry, longest: float) -> str:
    waits = rank.wait_seconds or 0.0
    bars = _bar("computing", rank.step_seconds, longest) + _bar("waiting", waits, longest)
    return (
        f'<tr><th scope="row">{rank.rank}</th><td class="host">{_text(rank.host)}</td>'
        f'<td class="wide"><div class="bar">{bars}</div></td>'
        f"<td>{duration(rank.step_seconds)}{_throttled(rank)}</td></tr>"
    )


def _throttled(rank: RankTelemetry) -> str:
    """Return that the rank's container has used its CPU limit up, if it has noticeably."""
    share_of_time = rank.throttled_share or 0.0
    return f", throttled {share_of_time:.0%} of the time" if share_of_time >= _NOTEWORTHY else ""


def _hour(points: Sequence[Point], now: float) -> str:
    def waited(point: Point) -> float:
        return min(point.wait_seconds, point.step_seconds)

    def selected(point: Point) -> float:
        return min(waited(point) + point.select_seconds, point.step_seconds)

    axes = charts.Axes.around(points, [point.step_seconds for point in points], now, zero=True)
    marks = charts.changes(axes, points)
    stacked = (
        charts.area(axes, points, lambda _: 0.0, waited, "waiting")
        + charts.area(axes, points, waited, selected, "selecting")
        + charts.area(axes, points, selected, lambda point: point.step_seconds, "computing")
    )
    drawn = [("Step time", charts.chart(axes, "Seconds of a step", stacked, duration, marks))]
    losses = [(point, point.loss) for point in points if point.loss is not None]
    densities = [(point, point.density) for point in points if point.density is not None]
    for title, values, unit in (("Loss", losses, number), ("Density", densities, share)):
        if values:
            drawn.append((title, _curve(title, values, unit, now, zero=title == "Density")))
    figures = "".join(f"<figure><figcaption>{title}</figcaption>{each}</figure>" for title, each in drawn)
    return f'<section id="hour"><h2>The last hour</h2>{figures}</section>'


def _curve(
    title: str,
    values: Sequence[tuple[Point, float]],
    unit: Callable[[float], str],
    now: float,
    *,
    zero: bool,
) -> str:
    points = [point for point, _ in values]
    of = {id(point): value for point, value in values}
    axes = charts.Axes.around(points, list(of.values()), now, zero=zero)
    curve = charts.line(axes, points, lambda point: of[id(point)], "curve")
    return charts.chart(axes, title, curve, unit, charts.changes(axes, points))


def _hosts(job: JobStateMachine) -> str:
    registry = job.registry
    here, missing = sorted(who.host for who in registry.connected), registry.missing()
    rows = [(host, "missing") for host in missing] + [(host, "connected") for host in here]
    cells = "".join(f'<li class="{state}">{_text(host)} {state}</li>' for host, state in rows[:_MOST_HOSTS])
    more = f"<p>{len(rows) - _MOST_HOSTS} more</p>" if len(rows) > _MOST_HOSTS else ""
    return (
        f'<section id="hosts"><h2>Hosts of generation {job.generation}</h2>'
        f'<ul class="hosts">{cells}</ul>{more}</section>'
    )


def _bar(style: str, value: float, most: float) -> str:
    width = 100 * value / most if most > 0 else 0.0
    return f'<i class="{style}" style="width:{width:.2f}%"></i>'


def _pairs(shown: dict[str, str]) -> str:
    return "".join(f"<div><dt>{name}</dt><dd>{_text(text)}</dd></div>" for name, text in shown.items())


def _text(value: object) -> str:
    return html.escape(str(value))
