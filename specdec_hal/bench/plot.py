"""Plots of recorded results: benchmarks beside the floor, the targets and others' figures; methods of drafting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from specdec_hal.errors import BackendUnavailableError


def plot(document: Mapping[str, Any], path: Path) -> None:
    """Draw a document of `runner.run_suites`, a panel for each group; the suffix of `path` chooses the format."""
    pyplot = _pyplot()
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["rows"]:
        if "error" in row:
            continue
        groups.setdefault(f"{row['suite']}: {row['group']}", []).append(row)
    figure, panels = pyplot.subplots(len(groups), squeeze=False, figsize=(9, 1 + 2.6 * len(groups)))
    for axes, (title, rows) in zip(panels[:, 0], groups.items(), strict=True):
        _panel(axes, title, rows)
    machine = document["machine"]
    figure.suptitle(f"{document['backend']} on {machine.get('gpu', machine['cpu'])}, commit {document['commit'][:10]}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_methods(document: Mapping[str, Any], path: Path) -> None:
    """Draw a document of `compare --method`: tokens per step and speed of each prompt, acceptance by draft position."""
    pyplot = _pyplot()
    rows = document["rows"]
    methods, prompts = (list(dict.fromkeys(row[key] for row in rows)) for key in ("method", "prompt"))
    figure, panels = pyplot.subplots(1, 3, figsize=(14, 4))
    width = 0.8 / len(methods)
    for axes, key, title in ((panels[0], "tokens_per_step", "tokens per step"), (panels[1], "speedup", "speed-up")):
        for shift, method in enumerate(methods):
            heights = [row[key] or 0 for row in rows if row["method"] == method]
            axes.bar([at + shift * width for at in range(len(prompts))], heights, width, label=method)
        axes.set_xticks(
            [at + 0.4 - width / 2 for at in range(len(prompts))], [Path(prompt).name for prompt in prompts], fontsize=7
        )
        axes.axhline(1, color="black", linewidth=0.5)
        axes.set_title(title)
        axes.legend(fontsize=7)
    for method in methods:
        each = [row["acceptance_by_position"] for row in rows if row["method"] == method]
        longest = max(map(len, each))
        means = [fmean(rates[at] for rates in each if len(rates) > at) for at in range(longest)]
        panels[2].plot(range(1, longest + 1), means, marker="o", label=method)
    panels[2].set_title("mean acceptance by draft position")
    panels[2].xaxis.get_major_locator().set_params(integer=True)
    panels[2].set_ylim(0, 1)
    figure.suptitle(f"{document['backend']}, {document['strategy']}, temperature {document['temperature']}")
    figure.tight_layout()
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


def _panel(axes: Any, title: str, rows: list[Mapping[str, Any]]) -> None:
    width, places = 0.38, range(len(rows))
    for shift, name, colour in ((-0.5, "warm", "tab:orange"), (0.5, "cold", "tab:blue")):
        if f"{name}_us" not in rows[0]:
            continue
        at = [place + shift * width for place in places]
        axes.bar(at, [row[f"{name}_us"]["median"] for row in rows], width, label=name, color=colour, alpha=0.8)
        marks = {"floor": ("_", "black", [row.get(f"{name}_floor_us") for row in rows])}
        marks["target"] = ("_", "tab:red", [row["target_us"][name] for row in rows])
        peers = {peer for row in rows for peer in row.get("peers_us", {})}
        for number, peer in enumerate(sorted(peers)):
            times = [row.get("peers_us", {}).get(peer, {}).get(name) for row in rows]
            marks[f"{peer}, measured elsewhere"] = ("xv^sD"[number % 5], "grey", times)
        for label, (marker, mark_colour, times) in marks.items():
            some = [(x, y) for x, y in zip(at, times, strict=True) if y is not None]
            if some:
                shown = label if name == "warm" else None
                axes.scatter(*zip(*some, strict=True), marker=marker, s=120, color=mark_colour, label=shown, zorder=3)
    axes.set_title(title, fontsize=9)
    axes.set_ylabel("us")
    axes.set_yscale("log")
    axes.set_xticks(list(places), [row["label"] for row in rows], fontsize=6, rotation=20, ha="right")
    axes.legend(fontsize=6)
    axes.grid(axis="y", alpha=0.3)
