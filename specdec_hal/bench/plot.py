"""Plots of recorded results: bars warm and cold, with the floor, the targets and others' figures drawn in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_hal.errors import BackendUnavailableError


def plot(document: Mapping[str, Any], path: Path) -> None:
    """Draw a document of `runner.run_suites`, a panel for each group; the suffix of `path` chooses the format."""
    try:
        import matplotlib
    except ImportError as error:
        raise BackendUnavailableError(
            "expected matplotlib to draw, found none; pip install 'specdec-hal[bench]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

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
