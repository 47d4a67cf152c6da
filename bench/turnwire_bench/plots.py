"""Plots as SVG text: lines, stacked bars and bars, with nothing from outside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

__all__ = ["PALETTE", "bar_plot", "line_plot", "stacked_plot"]

PALETTE: Final = (
    *("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f"),
    *("#b6992d", "#b07aa1", "#9c755f", "#86817a", "#d37295"),
    *("#2a9d8f", "#6a4c93"),
)
_WIDTH: Final = 760
_LEFT: Final = 120
_RIGHT: Final = 130
_ROW: Final = 22
_LINE_HEIGHT: Final = 300
_TICKS: Final = 5


def line_plot(
    lines: Mapping[str, Sequence[float]], *, x_name: str, y_name: str, first_x: int = 1
) -> str:
    """Return a plot with a line for each name; x counts from `first_x`, y is logarithmic.

    Args:
        lines: Name -> values. Values that are not above 0 are drawn at the bottom.
        x_name: What x is.
        y_name: What y is, with its unit.
        first_x: The first value's x.
    """
    values = [value for line in lines.values() for value in line if value > 0]
    if not values:
        return ""
    bottom = 10.0 ** math.floor(math.log10(min(values)))
    top = max(10.0 ** math.ceil(math.log10(max(values))), bottom * 10)
    count = max(len(line) for line in lines.values())
    left, right, upper, lower = 70, _WIDTH - _RIGHT, 14, _LINE_HEIGHT - 40

    def x_of(number: int) -> float:
        return left + (right - left) * (number / max(1, count - 1))

    def y_of(value: float) -> float:
        part = math.log10(max(value, bottom) / bottom) / math.log10(top / bottom)
        return lower - (lower - upper) * part

    parts = []
    mark = bottom
    while mark <= top * 1.0001:
        y = y_of(mark)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 8, y + 4, f"{mark:g}", anchor="end"))
        mark *= 10
    for number in _ticks(count):
        label = str(number + first_x)
        parts.append(_text(x_of(number), lower + 18, label, anchor="middle"))
    parts.append(_text((left + right) / 2, lower + 36, x_name, anchor="middle"))
    parts.append(_text(6, 12, y_name))
    for place, (name, line) in enumerate(lines.items()):
        color = PALETTE[place % len(PALETTE)]
        points = " ".join(f"{x_of(n):.1f},{y_of(value):.1f}" for n, value in enumerate(line))
        parts.append(
            f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{points}">'
            f"<title>{escape(name)}</title></polyline>"
        )
        for number, value in enumerate(line):
            parts.append(
                f'<circle cx="{x_of(number):.1f}" cy="{y_of(value):.1f}" r="3" fill="{color}">'
                f"<title>{escape(name)}, {escape(x_name)} {number + first_x}: {value:.2f}</title>"
                "</circle>"
            )
        y = 20 + place * 18
        parts.append(f'<rect x="{right + 14}" y="{y - 9}" width="10" height="10" fill="{color}"/>')
        parts.append(_text(right + 30, y, name))
    return _svg(_LINE_HEIGHT, parts, f"{y_name} by {x_name}")


def stacked_plot(bars: Mapping[str, Mapping[str, float]], *, unit: str) -> str:
    """Return horizontal bars made of parts, one below the other.

    Args:
        bars: Name -> part -> length. Parts below 0 are left out.
        unit: Of the lengths.
    """
    names = list(dict.fromkeys(part for parts in bars.values() for part in parts))
    longest = max(
        (sum(max(0.0, part) for part in parts.values()) for parts in bars.values()), default=0
    )
    if not longest:
        return ""
    width = _WIDTH - _LEFT - 80
    drawn = []
    for place, part in enumerate(names):
        at, y = _LEFT + place % 5 * 128, 12 + place // 5 * 18
        color = PALETTE[place % len(PALETTE)]
        drawn.append(f'<rect x="{at}" y="{y - 9}" width="10" height="10" fill="{color}"/>')
        drawn.append(_text(at + 14, y, part))
    begin = 20 + (len(names) + 4) // 5 * 18
    for row, (name, parts) in enumerate(bars.items()):
        y = begin + row * _ROW
        drawn.append(_text(_LEFT - 8, y + 12, name, anchor="end"))
        x = float(_LEFT)
        for place, part in enumerate(names):
            size = max(0.0, parts.get(part, 0.0))
            if not size:
                continue
            length = size / longest * width
            drawn.append(
                f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="16" '
                f'fill="{PALETTE[place % len(PALETTE)]}"><title>{escape(name)}: {escape(part)} '
                f"{size:.3f} {escape(unit)}</title></rect>"
            )
            x += length
        total = sum(max(0.0, part) for part in parts.values())
        drawn.append(_text(x + 6, y + 12, f"{total:.2f} {unit}"))
    return _svg(begin + len(bars) * _ROW + 6, drawn, f"parts in {unit}")


def bar_plot(groups: Mapping[str, Mapping[str, float]], *, unit: str, log: bool = False) -> str:
    """Return horizontal bars side by side, with their numbers.

    Args:
        groups: Name -> kind -> length.
        unit: Of the lengths.
        log: Whether lengths are logarithmic, from 1 on.
    """
    kinds = list(dict.fromkeys(kind for group in groups.values() for kind in group))
    largest = max((value for group in groups.values() for value in group.values()), default=0)
    if largest <= 0:
        return ""
    width = _WIDTH - _LEFT - 110

    def length_of(value: float) -> float:
        if log:
            return math.log10(max(1.0, value)) / math.log10(max(10.0, largest)) * width
        return max(0.0, value) / largest * width

    drawn = []
    for place, kind in enumerate(kinds):
        x = _LEFT + place * 128
        color = PALETTE[place % len(PALETTE)]
        drawn.append(f'<rect x="{x}" y="3" width="10" height="10" fill="{color}"/>')
        drawn.append(_text(x + 14, 12, kind))
    height = len(kinds) * 14 + 10
    for row, (name, group) in enumerate(groups.items()):
        y = 24 + row * height
        drawn.append(_text(_LEFT - 8, y + len(kinds) * 7 + 4, name, anchor="end"))
        for place, kind in enumerate(kinds):
            value = group.get(kind, 0.0)
            length = length_of(value)
            color = PALETTE[place % len(PALETTE)]
            top = y + place * 14
            drawn.append(
                f'<rect x="{_LEFT}" y="{top}" width="{length:.1f}" height="12" fill="{color}"/>'
            )
            drawn.append(_text(_LEFT + length + 6, top + 10, f"{value:,.4g} {unit}"))
    scale = ", logarithmic" if log else ""
    return _svg(24 + len(groups) * height, drawn, f"{unit}{scale}")


def _ticks(count: int) -> list[int]:
    step = max(1, math.ceil(count / (_TICKS * 2)))
    return list(range(0, count, step))


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
