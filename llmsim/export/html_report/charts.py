"""Charts as inline SVG: lines, bars and stacked bars that take their colours from the page."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 20, 34
MOST_POINTS = 300
"""Points of a line: more than a screen shows."""
COLORS = 8
"""Colours that the page defines, --s0 to --s7."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """A line of a chart; `color` is an index into the page's colours."""

    name: str
    x: Floats
    y: Floats
    color: int
    steps: bool = False
    """Whether the value stands until the next point."""


@dataclass(frozen=True)
class Axis:
    """An axis: its label, whether it is logarithmic, and the range where it is fixed."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    begin: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """The position of a value in the drawing."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(max(one, 1e-12)) for one in (value, low, high))
        share = (value - low) / (high - low) if high > low else 0.0
        return self.begin + min(max(share, 0.0), 1.0) * (self.end - self.begin)


def line_chart(title: str, lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """A figure with its legend; empty where no line has a point."""
    shown = [_thinned(line) for line in lines if len(line.x)]
    if not shown:
        return ""
    across = _scale(x, np.concatenate([one.x for one in shown]), LEFT, WIDTH - RIGHT)
    up = _scale(y, np.concatenate([one.y for one in shown]), HEIGHT - BOTTOM, TOP)
    parts = [*_grid(across, up, x, y)]
    for line in shown:
        parts.append(f'<path class="line s{line.color % COLORS}" d="{_path(line, across, up)}"/>')
    data = {
        "x": [LEFT, WIDTH - RIGHT, across.low, across.high, across.log],
        "xl": x.label,
        "yl": y.label,
        "s": [[one.name, one.color % COLORS, _short(one.x), _short(one.y)] for one in shown],
    }
    return _figure(title, parts, _legend([(one.name, one.color) for one in shown]), data)


def bar_chart(title: str, rows: Sequence[tuple[str, float, int]], unit: str) -> str:
    """Horizontal bars: label, value and colour; empty without any."""
    if not rows:
        return ""
    most = max(value for _, value, _ in rows) or 1.0
    height, label_width = 22 * len(rows) + 8, 190
    parts = []
    for number, (label, value, color) in enumerate(rows):
        y = 4 + 22 * number
        width = (WIDTH - label_width - 70) * value / most
        parts.append(
            f'<text x="{label_width - 6}" y="{y + 13}" text-anchor="end">{_cut(label, 30)}</text>'
            f'<rect class="bar s{color % COLORS}" x="{label_width}" y="{y}" width="{width:.1f}" '
            f'height="16"><title>{escape(label)}: {number_text(value)} {escape(unit)}</title>'
            f'</rect><text x="{label_width + width + 5:.1f}" y="{y + 13}">{number_text(value)} '
            f"{escape(unit)}</text>"
        )
    return _figure(title, parts, "", None, height)


def stacked_bars(
    title: str, rows: Sequence[tuple[str, Sequence[float]]], parts_of: Sequence[tuple[str, int]]
) -> str:
    """Bars of 100 %: for each row the values of the parts; empty where all are 0."""
    whole = [(label, values, sum(values)) for label, values in rows if sum(values) > 0]
    if not whole:
        return ""
    label_width = 190
    drawn = []
    for number, (label, values, total) in enumerate(whole):
        x, y = float(label_width), 4 + 26 * number
        drawn.append(
            f'<text x="{label_width - 6}" y="{y + 14}" text-anchor="end">{_cut(label, 30)}</text>'
        )
        for (name, color), value in zip(parts_of, values, strict=True):
            width = (WIDTH - label_width - RIGHT) * value / total
            if width > 0.2:
                drawn.append(
                    f'<rect class="bar s{color % COLORS}" x="{x:.1f}" y="{y}" '
                    f'width="{max(width - 1, 0.2):.1f}" height="20">'
                    f"<title>{escape(label)}, {escape(name)}: {100 * value / total:.1f} %</title>"
                    "</rect>"
                )
            x += width
    used = [
        part
        for index, part in enumerate(parts_of)
        if any(values[index] > 0.002 * total for _, values, total in whole)
    ]
    return _figure(title, drawn, _legend(used), None, 26 * len(whole) + 8)


def number_text(value: float | None, digits: int = 3) -> str:
    """A number for people: three significant digits, thousands apart; "-" for none."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= digits:
        return f"{value:,.0f}"
    if size < -3:
        return f"{value:.2e}"
    text = f"{value:,.{max(digits - 1 - size, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _figure(
    title: str,
    parts: Sequence[str],
    legend: str,
    data: dict[str, Any] | None,
    height: int = HEIGHT,
) -> str:
    attribute = ""
    if data is not None:
        attribute = f" data-chart='{escape(json.dumps(data, separators=(',', ':')))}'"
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>{legend}"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}"{attribute}>'
        f"{''.join(parts)}</svg></figure>"
    )


def _legend(names: Sequence[tuple[str, int]]) -> str:
    items = "".join(
        f'<span><i class="s{color % COLORS}"></i>{escape(name)}</span>' for name, color in names
    )
    return f'<div class="legend">{items}</div>'


def _scale(axis: Axis, values: Floats, begin: float, end: float) -> _Scale:
    finite = values[np.isfinite(values)]
    if axis.log:
        finite = finite[finite > 0]
    low = axis.low if axis.low is not None else (float(finite.min()) if len(finite) else 0.0)
    high = axis.high if axis.high is not None else (float(finite.max()) if len(finite) else 1.0)
    if axis.log:
        low = max(low, high / 1e6, 1e-9)
    if high <= low:
        high = low * 2 if axis.log else low + 1
    return _Scale(low, high, begin, end, axis.log)


def _grid(across: _Scale, up: _Scale, x: Axis, y: Axis) -> list[str]:
    parts = []
    for value in _ticks(up):
        at = up.at(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{number_text(value)}</text>'
        )
    bottom = HEIGHT - BOTTOM
    for value in _ticks(across):
        at = across.at(value)
        parts.append(
            f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
            f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{number_text(value)}</text>'
        )
    parts.append(
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
        f'<text class="label" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">'
        f"{escape(x.label)}</text>"
        f'<text class="label" x="{LEFT}" y="{TOP - 8}">{escape(y.label)}</text>'
    )
    return parts


def _ticks(scale: _Scale) -> list[float]:
    """Round values of an axis: powers of ten with 1, 2, 5, or about five steps."""
    if scale.log:
        first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
        digits = (1, 2, 5) if last - first <= 3 else (1,)
        every = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        inside = [value for value in every if scale.low <= value <= scale.high]
        if len(inside) > 2:
            return inside
    step = 10.0 ** math.floor(math.log10((scale.high - scale.low) / 4))
    step *= next(digit for digit in (1, 2, 5, 10) if (scale.high - scale.low) / step / digit <= 6)
    first = math.ceil(scale.low / step)
    last = math.floor(scale.high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _thinned(line: Line) -> Line:
    """At most MOST_POINTS points, ends included."""
    if len(line.x) <= MOST_POINTS:
        return line
    rows = np.unique(np.linspace(0, len(line.x) - 1, MOST_POINTS).astype(int))
    return Line(line.name, line.x[rows], line.y[rows], line.color, line.steps)


def _path(line: Line, across: _Scale, up: _Scale) -> str:
    words, pen = [], "M"
    last_y = 0.0
    for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        px, py = across.at(x), up.at(y)
        if line.steps and pen == "L":
            words.append(f"L{px:.1f} {last_y:.1f}")
        words.append(f"{pen}{px:.1f} {py:.1f}")
        pen, last_y = "L", py
    return "".join(words)


def _short(values: Floats) -> list[float | None]:
    return [float(f"{one:.4g}") if math.isfinite(one) else None for one in values.tolist()]


def _cut(text: str, most: int) -> str:
    return escape(text if len(text) <= most else text[: most - 1] + "…")
