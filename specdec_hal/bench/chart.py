"""Panels of lines as an SVG file, in the reader's colour scheme, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLORS = ("#2a7de1", "#00a37a", "#d9822b", "#b0569b", "#c2413b", "#8a8f98", "#3aa6b9", "#8f7a1e")
_STYLE = """\
svg { color-scheme: light dark; background: #fff; color: #1c1e21; font: 12px system-ui, sans-serif }
text { fill: currentColor } .title { font-size: 15px; font-weight: 600 } .end { text-anchor: end }
.middle { text-anchor: middle } .grid { stroke: currentColor; stroke-opacity: .16 }
.line { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) { svg { background: #16181b; color: #e4e6e9 } }
"""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 330, 250, 52, 14, 34, 46
"""Of a panel, and the margins around its axes, in pixels."""
_CHARACTER = 7
"""Most pixels of an average character."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """Axes with a line for each name. `top`: the largest y, or that of the points; the smallest is 0.

    `whole`: all x are integers. Each gets a label if there are few.
    """

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Points]
    top: float | None = None
    whole: bool = False


def drawing(title: str, panels: Sequence[Panel], columns: int = 3) -> str:
    """An SVG document: the title, a legend of all names, the panels."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colors = {name: COLORS[at % len(COLORS)] for at, name in enumerate(names)}
    columns = max(1, min(columns, len(panels)))
    width = max(columns * _WIDTH, 2 * _LEFT + _CHARACTER * len(title))
    legend, below = _legend(colors, width)
    height = below + _HEIGHT * math.ceil(len(panels) / columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="14" y="26">{escape(title)}</text>',
        *legend,
    ]
    for at, panel in enumerate(panels):
        x, y = at % columns * _WIDTH, below + at // columns * _HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *_panel(panel, colors), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _legend(colors: Mapping[str, str], width: int) -> tuple[list[str], int]:
    """Its elements, in rows, and the y below it."""
    parts, x, y = list[str](), 14, 50
    for name, color in colors.items():
        needed = 40 + _CHARACTER * len(name)
        if x > 14 and x + needed > width:
            x, y = 14, y + 20
        parts.append(f'<path class="line" stroke="{color}" d="M{x} {y - 4}h18"/>')
        parts.append(f'<text x="{x + 24}" y="{y}">{escape(name)}</text>')
        x += needed
    return parts, y + 10


def _panel(panel: Panel, colors: Mapping[str, str]) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    left, right = (edge((x for x, _ in points), default=0.0) for edge in (min, max))
    top = panel.top or max((y for _, y in points), default=0.0) or 1.0
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(x: float) -> float:
        return _LEFT + (wide * (x - left) / (right - left) if right > left else wide / 2)

    def up(y: float) -> float:
        return _TOP + high * (1 - y / top)

    parts = [f'<text x="{_LEFT}" y="{_TOP - 12}">{escape(panel.title)}</text>']
    for y in _ticks(0.0, top, 5):
        parts.append(f'<path class="grid" d="M{_LEFT} {up(y):.1f}h{wide}"/>')
        parts.append(f'<text class="end" x="{_LEFT - 6}" y="{up(y) + 4:.1f}">{y:g}</text>')
    for x in _ticks(left, right, min(10, round(right - left)) if panel.whole else 4, panel.whole):
        parts.append(f'<text class="middle" x="{across(x):.1f}" y="{_HEIGHT - _BOTTOM + 18}">{x:,g}</text>')
    parts.append(f'<text class="middle" x="{_LEFT + wide / 2}" y="{_HEIGHT - 8}">{escape(panel.x_label)}</text>')
    turned = f"translate(14 {_TOP + high / 2}) rotate(-90)"
    parts.append(f'<text class="middle" transform="{turned}">{escape(panel.y_label)}</text>')
    for name, line in panel.lines.items():
        shown = [(across(x), up(y)) for x, y in line if math.isfinite(y)]
        route = "L".join(f"{x:.1f} {y:.1f}" for x, y in shown)
        if route:
            parts.append(f'<path class="line" stroke="{colors[name]}" d="M{route}"/>')
        if len(shown) <= 20:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colors[name]}"/>' for x, y in shown]
    return parts


def _ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Round numbers from low to high, some `most` of them."""
    if high <= low or most < 1:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    if whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * at, 10) for at in range(first, last + 1)]
