"""Charts as SVG text: lines over n with a chosen point, and bars; coloured by the page's style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from mmsmart.eval.svg import nice_ticks

WIDTH, HEIGHT = 420, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 14, 40
_TICKS = 4
COLOURS = 6
"""Series that the style sheet tells apart."""


@dataclass(frozen=True)
class Mark:
    """A point that stands out.

    Attributes:
        x, y: Where.
        text: Said when the pointer rests on it.
    """

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Lines:
    """A line chart, both axes linear, the vertical one from 0.

    Attributes:
        title: Above the chart, and for screen readers.
        x_label: Below it.
        unit: Of the vertical axis.
        series: Name to points.
        mark: The chosen point.
    """

    title: str
    x_label: str
    unit: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    mark: Mark | None = None


def line_chart(chart: Lines) -> str:
    """The chart with its title, and a legend when there is more than one line."""
    points = [point for series in chart.series.values() for point in series]
    marked = [] if chart.mark is None else [(chart.mark.x, chart.mark.y)]
    across = max([x for x, _ in points + marked], default=1.0) or 1.0
    ticks = nice_ticks(max([y for _, y in points + marked], default=1.0), _TICKS)
    scale = _Scale(across, ticks[-1])
    body = [
        *(_level(tick, scale.y(tick)) for tick in ticks),
        *(_text(f"{tick:g}", scale.x(tick), HEIGHT - _BOTTOM + 16, "middle") for tick in _whole_ticks(across)),
        _text(chart.x_label, (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, "middle"),
        *(_line(number % COLOURS, points, scale, chart.unit) for number, points in enumerate(chart.series.values())),
        *([] if chart.mark is None else _mark(chart.mark, scale)),
    ]
    return _figure(f"{chart.title} ({chart.unit})", body, list(chart.series) if len(chart.series) > 1 else [])


def bar_chart(title: str, bars: Sequence[tuple[str, float, str]], reference: float | None = None) -> str:
    """Horizontal bars, one under the other.

    Args:
        title: Above the chart, and for screen readers.
        bars: Name, length and label of each.
        reference: Value at which a line is drawn.
    """
    step, label_width, end = 30, 104, WIDTH - 62
    highest = max([value for _, value, _ in bars] + [reference or 0.0, 1e-9])
    height = step * len(bars) + 8
    body = []
    if reference is not None:
        x = label_width + (end - label_width) * reference / highest
        body.append(f'<line class="reference" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
    for place, (name, value, label) in enumerate(bars):
        y, width = step * place + 6, max(2.0, (end - label_width) * value / highest)
        body.append(_text(name, label_width - 8, y + 15, "end"))
        body.append(
            f'<rect class="bar" x="{label_width}" y="{y}" width="{width:.1f}" height="20" rx="3">'
            f"<title>{escape(name)}: {escape(label)}</title></rect>"
        )
        body.append(_text(label, label_width + width + 6, y + 15, "start"))
    return _figure(title, body, [], height)


@dataclass(frozen=True)
class _Scale:
    across: float
    highest: float

    def x(self, value: float) -> float:
        return _LEFT + value / self.across * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _TOP + (1 - value / self.highest) * (HEIGHT - _TOP - _BOTTOM)


def _figure(title: str, body: Sequence[str], names: Sequence[str], height: int = HEIGHT) -> str:
    keys = "".join(
        f'<li><span class="key s{number % COLOURS}"></span>{escape(name)}</li>' for number, name in enumerate(names)
    )
    legend = f'<ul class="legend">{keys}</ul>' if keys else ""
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'
        f"{legend}</figure>"
    )


def _line(number: int, points: Sequence[tuple[float, float]], scale: _Scale, unit: str) -> str:
    places = [(scale.x(x), scale.y(y), x, y) for x, y in points]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py, _, _ in places)
    dots = "".join(
        f'<circle class="dot s{number}" cx="{px:.1f}" cy="{py:.1f}" r="2.5">'
        f"<title>{x:g}: {y:.3g} {escape(unit)}</title></circle>"
        for px, py, x, y in places
    )
    return f'<polyline class="line s{number}" points="{path}"/>{dots}'


def _mark(mark: Mark, scale: _Scale) -> list[str]:
    x, y = scale.x(mark.x), scale.y(mark.y)
    return [
        f'<line class="reference" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>',
        f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="6"><title>{escape(mark.text)}</title></circle>',
    ]


def _level(tick: float, y: float) -> str:
    grid = f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return grid + _text(f"{tick:g}", _LEFT - 6, y + 4, "end")


def _whole_ticks(across: float) -> list[int]:
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if across / step <= 9)
    return list(range(0, int(across) + 1, step))


def _text(text: str, x: float, y: float, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
