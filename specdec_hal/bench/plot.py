"""Plots of recorded results: lines over what a benchmark varies, single cases as points; methods of drafting.

Floors are those of the run. Targets and others' figures are drawn only if the run was on the machine that they are of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from specdec_hal.errors import BackendUnavailableError, RequestError

Row = Mapping[str, Any]
_MACHINE = "H200"
"""The GPU that targets and others' figures are of."""
_FEWEST = 3
"""Points of a line."""
_LEGEND: Mapping[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "fontsize": 8, "frameon": False}


def check_plot(path: Path) -> None:
    """Raise what would keep a plot from being written, before there is anything to draw.

    BackendUnavailableError without matplotlib, RequestError for a suffix that names no format.
    """
    formats = sorted(_pyplot().figure().canvas.get_supported_filetypes())
    _pyplot().close()
    if (suffix := path.suffix.removeprefix(".").lower()) not in formats:
        raise RequestError(f"--plot: expected a suffix of {', '.join(formats)}, got {suffix!r}; use {path.stem}.png")


def plot(document: Mapping[str, Any], path: Path) -> None:
    """Draw a document of `runner.run_suites`; the suffix of `path` chooses the format.

    Each group has a panel for each number that it varies alone, with a line for each of the other settings, and a panel
    of the cases that are on no line.
    """
    pyplot = _pyplot()
    machine = document["machine"]
    comparable = _MACHINE in machine.get("gpu", "")
    panels: list[tuple[str, str, Any]] = []  # title, the number varied ("": single cases), lines or rows
    for title, rows in _groups(document["rows"]).items():
        lines = lines_of(rows)
        panels += [(title, key, some) for key, some in lines.items()]
        on_lines = {id(row) for some in lines.values() for line in some.values() for row in line}
        if alone := [row for row in rows if id(row) not in on_lines]:
            panels.append((title, "", alone))
    heights = [3.0 if key else 1.0 + 0.3 * len(rows) for _, key, rows in panels]
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


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "error" not in row:
            found.setdefault(f"{row['suite']}: {row['group']}", []).append(row)
    return found


def lines_of(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """By the number that is varied and what else the rows have in common: rows in the order of that number."""
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
        for name, x, y in _marks(rows, at) if comparable else ():
            axes.plot(x, y, _MARKS.get(name, "x"), color=colour, markersize=10, label=name)
    axes.set_yscale("log")
    axes.set_xscale("log", base=2)
    values = sorted({row[key] for rows in lines.values() for row in rows})
    shown = [values[0]]
    for value in values[1:]:
        if value / shown[-1] > 1.25:  # labels that do not touch
            shown.append(value)
    axes.set_xticks(shown, [f"{value:,g}" for value in shown])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlabel(key)
    axes.set_ylabel("us")
    _finish(axes, title)


def _draw_points(axes: Any, title: str, rows: Sequence[Row], comparable: bool) -> None:
    at = list(range(len(rows)))
    for name, marker in (("warm", "o"), ("cold", "s")):
        if f"{name}_us" in rows[0]:
            axes.plot(_medians(rows, name), at, marker, label=name)
    if "warm_floor_us" in rows[0]:
        axes.plot([row["warm_floor_us"] for row in rows], at, "|", color="black", markersize=12, label="floor")
    for name, y, x in _marks(rows, at) if comparable else ():
        axes.plot(x, y, "|" if name == "target" else "x", markersize=10, label=name)
    labels = [row["label"].removeprefix(title.partition(": ")[2]).removeprefix(", ") for row in rows]
    axes.set_yticks(at, labels, fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("us")
    _finish(axes, title)


_MARKS = {"target": "_"}


def _medians(rows: Sequence[Row], name: str) -> list[float]:
    return [row[f"{name}_us"]["median"] for row in rows]


def _marks(rows: Sequence[Row], at: Sequence[Any]) -> list[tuple[str, list[Any], list[float]]]:
    """Warm targets and others' times: name, places and values."""
    found: dict[str, list[tuple[Any, float]]] = {}
    for place, row in zip(at, rows, strict=True):
        for name, times in {"target": row["target_us"], **row.get("peers_us", {})}.items():
            if times["warm"] is not None:
                found.setdefault(name, []).append((place, times["warm"]))
    return [(name, [x for x, _ in some], [y for _, y in some]) for name, some in found.items()]


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(alpha=0.3)
    names = {name: handle for handle, name in reversed(list(zip(*axes.get_legend_handles_labels(), strict=True)))}
    axes.legend(list(names.values())[::-1], list(names)[::-1], **_LEGEND)


def plot_methods(document: Mapping[str, Any], path: Path) -> None:
    """Draw a document of `compare --method`: tokens per step and speed of each prompt, acceptance by draft position."""
    pyplot = _pyplot()
    rows = document["rows"]
    methods, prompts = (list(dict.fromkeys(row[key] for row in rows)) for key in ("method", "prompt"))
    figure, panels = pyplot.subplots(1, 3, figsize=(15, 4), layout="constrained")
    width = 0.8 / len(methods)
    for axes, key, title in ((panels[0], "tokens_per_step", "tokens per step"), (panels[1], "speedup", "speed-up")):
        for shift, method in enumerate(methods):
            some = [row for row in rows if row["method"] == method]
            at, heights = [at + shift * width for at in range(len(prompts))], [row[key] or 0 for row in some]
            axes.bar(at, heights, width, label=method)
            if key == "speedup":  # of each turn
                turns = [row["all_speedups"] for row in some]
                below = [max(height - min(one), 0) for height, one in zip(heights, turns, strict=True)]
                above = [max(max(one) - height, 0) for height, one in zip(heights, turns, strict=True)]
                axes.errorbar(at, heights, (below, above), fmt="none", ecolor="black", capsize=2, linewidth=0.8)
        axes.set_xticks(
            [at + 0.4 - width / 2 for at in range(len(prompts))], [Path(prompt).name for prompt in prompts], fontsize=7
        )
        axes.axhline(1, color="black", linewidth=0.5)
        axes.set_title(title)
    for method in methods:
        each = [row["acceptance_by_position"] for row in rows if row["method"] == method]
        longest = max(map(len, each))
        # Of drafts, however long they were: a position that no draft reached has none accepted.
        means = [fmean(rates[at] if len(rates) > at else 0.0 for rates in each if rates) for at in range(longest)]
        panels[2].plot(range(1, longest + 1), means, marker="o", label=method)
    panels[2].set_title("mean acceptance by draft position")
    panels[2].xaxis.get_major_locator().set_params(integer=True)
    panels[2].set_ylim(0, 1)
    panels[2].legend(**_LEGEND)
    figure.suptitle(f"{document['backend']}, {document['strategy']}, temperature {document['temperature']}")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise BackendUnavailableError(
            "expected matplotlib to draw, found none; pip install 'specdec-hal[bench]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
