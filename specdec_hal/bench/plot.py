"""Plots of suites: cases as multiples of their floors, and lines over each varied number.

Floors are those of the run. Targets and figures of other implementations appear only for runs on the same GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_hal.errors import BackendUnavailableError, RequestError

Row = Mapping[str, Any]
_MACHINE = "H200"
"""The GPU of targets and of other implementations' figures."""
_WIDE = 30
"""Ratio of times from which their axis is logarithmic."""
_FEWEST = 3
"""Points of a line."""
_STEPS = (1.0, 2.0, 5.0)
"""Ticks of a logarithmic axis, per decade."""
_LEGEND: Mapping[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "fontsize": 8, "frameon": False}


def check_plot(path: Path) -> None:
    """Check that a plot can be written, before anything is measured.

    BackendUnavailableError without matplotlib, RequestError for an unknown suffix.
    """
    formats = sorted(pyplot_for_files().figure().canvas.get_supported_filetypes())
    pyplot_for_files().close()
    if (suffix := path.suffix.removeprefix(".").lower()) not in formats:
        raise RequestError(f"--plot: expected a suffix of {', '.join(formats)}, got {suffix!r}; use {path.stem}.png")


def plot(document: Mapping[str, Any], path: Path) -> None:
    """Draw a document of `runner.run_suites`; the suffix of `path` chooses the format.

    Each suite has a panel of its cases, as multiples of their floors, and a panel for each number that a group varies
    alone, with a line per remaining setting. A group without single cases appears in the first panel with the case that
    has most peers.
    """
    pyplot = pyplot_for_files()
    machine = document["machine"]
    comparable = _MACHINE in machine.get("gpu", "")
    panels: list[tuple[str, str, Any]] = []  # title, the number varied ("": cases of a suite), lines or rows
    for suite in dict.fromkeys(row["suite"] for row in document["rows"]):
        cases, varied = list[Row](), list[tuple[str, str, Any]]()
        for title, rows in _groups(row for row in document["rows"] if row["suite"] == suite).items():
            lines = lines_of(rows)
            varied += [(title, key, some) for key, some in lines.items()]
            on_lines = {id(row) for some in lines.values() for line in some.values() for row in line}
            cases += [row for row in rows if id(row) not in on_lines] or [max(reversed(rows), key=_peers)]
        panels += [(suite, "", cases), *varied] if cases else []
    heights = [3.0 if key else 1.0 + 0.2 * len(rows) for _, key, rows in panels]
    figure, axes = pyplot.subplots(
        len(panels), squeeze=False, figsize=(11, sum(heights) + 1), height_ratios=heights, layout="constrained"
    )
    for one, (title, key, rows) in zip(axes[:, 0], panels, strict=True):
        if key:
            _draw_lines(one, title, key, rows, comparable)
        else:
            _draw_points(one, title, rows, comparable)
    figure.suptitle(f"{document['backend']} on {machine.get('gpu', machine['cpu'])}, commit {document['commit'][:10]}")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _peers(row: Row) -> int:
    return len(row.get("peers_us", {}))


def _groups(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "error" not in row:
            found.setdefault(f"{row['suite']}: {row['group']}", []).append(row)
    return found


def lines_of(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Rows by (varied number, other settings), sorted by that number."""
    settings = [
        key for key, value in rows[0].items() if key not in _NO_SETTING and isinstance(value, (int, float, str))
    ]
    varied = [key for key in settings if len({row.get(key) for row in rows}) > 1]
    found: dict[str, dict[str, list[Row]]] = {}
    for key in varied:
        if isinstance(rows[0][key], (str, bool)):
            continue
        others = [other for other in varied if other != key]
        same: dict[tuple[Any, ...], dict[Any, Row]] = {}
        for row in rows:
            same.setdefault(tuple(row.get(other) for other in others), {}).setdefault(row[key], row)
        for values, some in same.items():
            if len(some) >= _FEWEST:
                label = ", ".join(map(_setting, others, values)) or "warm"
                found.setdefault(key, {})[label] = [some[value] for value in sorted(some)]
    return found


def _setting(name: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{name} {value:,g}"


_NO_SETTING = ("suite", "group", "label", "moved_bytes", "warm_floor_us", "cold_floor_us")


def _draw_lines(axes: Any, title: str, key: str, lines: Mapping[str, Sequence[Row]], comparable: bool) -> None:
    for number, (label, rows) in enumerate(lines.items()):
        colour, at = f"C{number}", [row[key] for row in rows]
        axes.plot(at, _medians(rows, "warm"), "o-", markersize=4, color=colour, label=label)
        if "cold_us" in rows[0]:
            axes.plot(at, _medians(rows, "cold"), "s:", markersize=3, color=colour, alpha=0.6, label="cold")
        if "warm_floor_us" in rows[0]:
            axes.plot(at, [row["warm_floor_us"] for row in rows], "--", color=colour, alpha=0.4, label="floor")
        for peer, (name, x, y) in enumerate(_marks(rows, at) if comparable else ()):
            axes.plot(x, y, "_" if name == "target" else _marker(peer), color=colour, markersize=8, label=name)
    axes.set_yscale("log")
    axes.yaxis.get_major_locator().set_params(subs=_STEPS)
    values = sorted({row[key] for rows in lines.values() for row in rows})
    if values[0] > 0:
        axes.set_xscale("log", base=2)
    shown = [values[0]]
    for value in values[1:]:
        if value > 1.25 * shown[-1]:  # labels that do not touch
            shown.append(value)
    axes.set_xticks(shown, [f"{value:,g}" for value in shown])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlabel(key)
    axes.set_ylabel("us")
    _finish(axes, title)


def _draw_points(axes: Any, title: str, rows: Sequence[Row], comparable: bool) -> None:
    """One line per case: multiples of the floor if there is one, else microseconds."""
    at, over_floors = list(range(len(rows))), all(row.get("warm_floor_us") for row in rows)

    def scaled(values: Sequence[float], positions: Sequence[int], floor: str) -> list[float]:
        return [
            value / rows[position][floor] if over_floors else value
            for value, position in zip(values, positions, strict=True)
        ]

    axes.plot(scaled(_medians(rows, "warm"), at, "warm_floor_us"), at, "o", markersize=4, label="warm")
    if all("cold_us" in row for row in rows):
        axes.plot(scaled(_medians(rows, "cold"), at, "cold_floor_us"), at, "s", markersize=4, label="cold")
    for number, (name, y, x) in enumerate(_marks(rows, at) if comparable else ()):
        marker = "|" if name == "target" else _marker(number)
        axes.plot(scaled(x, y, "warm_floor_us"), y, marker, markersize=7, label=name)
    if over_floors:
        axes.axvline(1.0, color="black", linewidth=0.8, label="floor")
        axes.set_xscale("log")
        axes.xaxis.get_major_locator().set_params(subs=_STEPS)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
    elif max(_medians(rows, "warm")) > _WIDE * min(_medians(rows, "warm")):
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    axes.set_yticks(at, [row["label"] for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("times the floor" if over_floors else "us")
    _finish(axes, title)


def _marker(peer: int) -> str:
    return "xP*^vDX"[peer % 7]


def _medians(rows: Sequence[Row], name: str) -> list[float]:
    return [row[f"{name}_us"]["median"] for row in rows]


def _marks(rows: Sequence[Row], at: Sequence[Any]) -> list[tuple[str, list[Any], list[float]]]:
    """Warm targets and other implementations' times: name, positions and values."""
    found: dict[str, list[tuple[Any, float]]] = {}
    for position, row in zip(at, rows, strict=True):
        for name, times in {"target": row["target_us"], **row.get("peers_us", {})}.items():
            if times["warm"] is not None:
                found.setdefault(name, []).append((position, times["warm"]))
    return [(name, [x for x, _ in some], [y for _, y in some]) for name, some in found.items()]


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(alpha=0.3)
    names = {name: handle for handle, name in reversed(list(zip(*axes.get_legend_handles_labels(), strict=True)))}
    axes.legend(list(names.values())[::-1], list(names)[::-1], **_LEGEND)


def pyplot_for_files() -> Any:
    """matplotlib.pyplot without a window; BackendUnavailableError where it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise BackendUnavailableError(
            "expected matplotlib to draw, found none; pip install 'specdec-hal[bench]'"
        ) from error
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it logs the search for fonts
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
