"""Line charts as SVG text, coloured by the page's style sheet, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 440, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 12, 44
_TICKS = 5
SERIES = 6
"""Colours that the style sheet has; further lines begin anew."""


@dataclass(frozen=True)
class Axes:
    """What the axes show.

    Attributes:
        x_label, y_label: Their names.
        x_ticks: Values along the horizontal axis, equally far apart whatever they are.
        reference: A value at which a horizontal line is drawn.
        top: Least upper end of the vertical axis.
    """

    x_label: str
    y_label: str
    x_ticks: Sequence[float]
    reference: float | None = None
    top: float = 0.0


def line_chart(series: Mapping[str, Points], axes: Axes, title: str) -> str:
    """A chart of one line for each name, the vertical axis from 0.

    Args:
        series: Name to points whose x are among the axes' ticks.
        axes: The axes.
        title: Read out by screen readers.
    """
    highest = max([axes.top, axes.reference or 0.0, *(y for points in series.values() for _, y in points)])
    ticks = nice_ticks(highest)
    scale = _Scale(list(axes.x_ticks), ticks[-1])
    lines = [_line(number % SERIES, points, scale) for number, points in enumerate(series.values())]
    reference = [] if axes.reference is None else [_reference(scale.y(axes.reference))]
    return "".join(
        [
            f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
            *(_horizontal(tick, scale) for tick in ticks),
            *(_vertical(tick, scale) for tick in _thinned(axes.x_ticks)),
            _label(axes.x_label, (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, "middle"),
            f'<g transform="translate(12 {(_TOP + HEIGHT - _BOTTOM) / 2:.0f}) rotate(-90)">',
            _label(axes.y_label, 0, 0, "middle"),
            "</g>",
            *reference,
            *lines,
            "</svg>",
        ]
    )


def legend(names: Sequence[str]) -> str:
    """The names of the lines in their colours."""
    items = (
        f'<li><span class="key s{number % SERIES}"></span>{escape(name)}</li>' for number, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def nice_ticks(highest: float, count: int = _TICKS) -> list[float]:
    """Round values from 0 to at least the highest, about ``count`` steps."""
    rough = max(highest, 1e-9) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [round(step * number, 10) for number in range(max(1, math.ceil(highest / step - 1e-9)) + 1)]


@dataclass(frozen=True)
class _Scale:
    x_ticks: list[float]
    highest: float

    def x(self, value: float) -> float:
        """Pixels from the left."""
        count = len(self.x_ticks)
        share = 0.5 if count == 1 else self.x_ticks.index(value) / (count - 1)
        return _LEFT + 14 + share * (WIDTH - _LEFT - _RIGHT - 28)

    def y(self, value: float) -> float:
        """Pixels from above."""
        return _TOP + (1 - value / (self.highest or 1)) * (HEIGHT - _TOP - _BOTTOM)


def _line(number: int, points: Points, scale: _Scale) -> str:
    places = [(scale.x(x), scale.y(y)) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(
        f'<circle class="dot s{number}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{value:.3g}</title></circle>'
        for (x, y), (_, value) in zip(places, points, strict=True)
    )
    return f'<polyline class="line s{number}" points="{path}"/>{dots}'


def _horizontal(tick: float, scale: _Scale) -> str:
    y = scale.y(tick)
    grid = f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return grid + _label(f"{tick:g}", _LEFT - 6, y + 4, "end")


def _vertical(tick: float, scale: _Scale) -> str:
    return _label(f"{tick:g}", scale.x(tick), HEIGHT - _BOTTOM + 18, "middle")


def _reference(y: float) -> str:
    return f'<line class="reference" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _label(text: str, x: float, y: float, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _thinned(ticks: Sequence[float]) -> Sequence[float]:
    return ticks[:: max(1, math.ceil(len(ticks) / 12))]
