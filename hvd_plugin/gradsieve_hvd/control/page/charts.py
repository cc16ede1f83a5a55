"""Charts of the last hour, as SVG: time goes to the right, and `now` is the right edge."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradsieve_hvd.control.history import HOUR, POINT_SECONDS, Point
from gradsieve_hvd.control.page.wording import duration

WIDTH, HEIGHT = 720, 150
_LEFT, _TOP, _BOTTOM = 64, 10, 24
_SHORTEST_SPAN = 300.0
_GAP_SECONDS = 4 * POINT_SECONDS
"""Where no sample came for so long, a curve is interrupted."""


@dataclass(frozen=True)
class Axes:
    """What the edges of a chart stand for.

    Attributes:
        begins, ends: seconds of the coordinator's clock, left and right.
        least, most: values, at the bottom and at the top.
    """

    begins: float
    ends: float
    least: float
    most: float

    @classmethod
    def around(cls, points: Sequence[Point], values: Sequence[float], now: float, *, zero: bool) -> Axes:
        """Return axes that show all of some points, none of them at the very edge.

        Args:
            points: of the last hour, at least one.
            values: that are drawn, at least one.
            now: the right edge.
            zero: whether values begin with zero.
        """
        span = min(max(now - points[0].at, _SHORTEST_SPAN), HOUR)
        least, most = (0.0 if zero else min(values)), max(values)
        margin = 0.08 * (most - least) or abs(most) or 1.0
        return cls(now - span, now, least if zero else least - margin, most + margin)

    def x(self, at: float) -> float:
        """Return where a time is."""
        return round(_LEFT + (WIDTH - _LEFT) * (at - self.begins) / (self.ends - self.begins), 1)

    def y(self, value: float) -> float:
        """Return where a value is."""
        part = (value - self.least) / (self.most - self.least)
        return round(HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * part, 1)


def chart(axes: Axes, title: str, drawn: str, unit: Callable[[float], str], changes: str = "") -> str:
    """Return a chart: what is drawn, with values at the left edge and times below.

    Args:
        axes: of the chart.
        title: what it shows, for those who cannot see it.
        drawn: SVG elements.
        unit: writes values.
        changes: SVG elements that lie over what is drawn.
    """
    span = axes.ends - axes.begins
    values = [axes.most, (axes.most + axes.least) / 2, axes.least]
    lines = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH}" y1="{axes.y(value)}" y2="{axes.y(value)}"/>'
        f'<text class="end" x="{_LEFT - 8}" y="{axes.y(value) + 4}">{html.escape(unit(value))}</text>'
        for value in values
    )
    times = "".join(
        f'<text class="{place}" x="{axes.x(axes.ends - part * span)}" y="{HEIGHT - 6}">{text}</text>'
        for part, place, text in (
            (1, "start", f"{duration(span)} ago"),
            (0.5, "middle", f"{duration(span / 2)} ago"),
            (0, "end", "now"),
        )
    )
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH} {HEIGHT}"><title>{html.escape(title)}</title>'
        f"{lines}{drawn}{changes}{times}</svg>"
    )


def area(
    axes: Axes,
    points: Sequence[Point],
    low: Callable[[Point], float],
    high: Callable[[Point], float],
    style: str,
) -> str:
    """Return what lies between two curves, as steps: a point's value holds until the next one."""
    drawn = []
    for run in _runs(points):
        edges = list(_edges(axes, run))
        upper = [f"{x},{axes.y(high(point))}" for point, *both in edges for x in both]
        lower = [f"{x},{axes.y(low(point))}" for point, *both in edges for x in both]
        drawn.append(f'<polygon class="{style}" points="{" ".join([*upper, *reversed(lower)])}"/>')
    return "".join(drawn)


def line(axes: Axes, points: Sequence[Point], value: Callable[[Point], float], style: str) -> str:
    """Return a curve, as steps."""
    drawn = []
    for run in _runs(points):
        corners = [f"{x},{axes.y(value(point))}" for point, *both in _edges(axes, run) for x in both]
        drawn.append(f'<polyline class="{style}" points="{" ".join(corners)}"/>')
    return "".join(drawn)


def changes(axes: Axes, points: Sequence[Point]) -> str:
    """Return marks where ranks began to follow another plan, or were started anew."""
    marks = []
    for before, after in itertools.pairwise(points):
        if (before.generation, before.plan) == (after.generation, after.plan):
            continue
        started = before.generation != after.generation
        text = f"start {after.generation}" if started else f"plan {after.plan}: {after.mode}"
        x = axes.x(after.at)
        marks.append(
            f'<g><line class="change" x1="{x}" x2="{x}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
            f"<title>{html.escape(text)}</title></g>"
        )
    return "".join(marks)


def _runs(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """Yield the points between two interruptions."""
    began = 0
    for place, (before, after) in enumerate(itertools.pairwise(points), 1):
        if after.generation != before.generation or after.at - before.at > _GAP_SECONDS:
            yield points[began:place]
            began = place
    yield points[began:]


def _edges(axes: Axes, run: Sequence[Point]) -> Iterator[tuple[Point, float, float]]:
    """Yield each point with the places where it begins and ends; the first may begin before the axes do."""
    for place, point in enumerate(run):
        ends = run[place + 1].at if place + 1 < len(run) else min(point.at + POINT_SECONDS, axes.ends)
        yield point, axes.x(max(point.at, axes.begins)), axes.x(max(ends, axes.begins))
