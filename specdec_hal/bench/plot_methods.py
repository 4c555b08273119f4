"""Plots of `compare --method` and `compare --sweep`. Methods are sorted by measured speed-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_hal.bench.plot import pyplot_for_files
from specdec_hal.bench.pooled import pooled, shown

Row = Mapping[str, Any]
_MOST_PROMPTS = 6
"""Most prompts with their own bars; more prompts become dots beside the pooled bars."""


def plot_methods(document: Mapping[str, Any], path: Path) -> None:
    """Draw a document of `compare --method`: speed-up, tokens per step, and how many drafts were accepted.

    Error bars: the range of the turns for one prompt, the 95 % interval for all prompts. With a sweep the first two
    panels are over K, and the others show the fastest K of each method.
    """
    pyplot = pyplot_for_files()
    rows, sides = document["rows"], pooled(document["rows"])
    sides = sorted((side for side in sides if side["method"] != "naive"), key=lambda side: -side["speedup"])
    figure, ((speed, tokens), (positions, lengths)) = pyplot.subplots(2, 2, figsize=(12, 8), layout="constrained")
    if any("k" in side for side in sides):
        _sweep(speed, tokens, sides)
        sides = [next(side for side in sides if drafter(side) == name) for name in dict.fromkeys(map(drafter, sides))]
    else:
        for axes, key, unit in (
            (speed, "speedup", "speed-up over plain decoding"),
            (tokens, "tokens_per_step", "tokens per request and decode step"),
        ):
            _bars(axes, rows, sides, key)
            _finish(axes, unit)
    _accepted(positions, lengths, sides, recorded=all("num_drafts" in row for row in rows))
    figure.suptitle(f"{document['backend']}, {document['strategy']}, temperature {document['temperature']:g}")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def drafter(row: Row) -> str:
    """The method of a row without its K."""
    return str(row["method"]).removesuffix(f" K={row['k']}") if "k" in row else str(row["method"])


def _bars(axes: Any, rows: Sequence[Row], sides: Sequence[Row], key: str) -> None:
    prompts = list(dict.fromkeys(row["prompt"] for row in rows))
    names = prompts if len(prompts) <= _MOST_PROMPTS else []
    width = 0.8 / max(len(sides), 1)
    for number, side in enumerate(sides):
        some = {row["prompt"]: row for row in rows if row["method"] == side["method"]}
        shift = (number - (len(sides) - 1) / 2) * width
        bars = [(some[name][key] or 0, some[name]["all_speedups"] if key == "speedup" else None) for name in names]
        if len(prompts) > 1:
            bars.append((side[key] or 0, side[f"{key}_95"]))
        heights = [height for height, _ in bars]
        positions = [position + shift for position in range(len(bars))]
        axes.bar(positions, heights, width, color=f"C{number}", label=side["method"])
        ranges = [spread or [height] for height, spread in bars]
        below, above = (
            [max(sign * (end(one) - height), 0) for height, one in zip(heights, ranges, strict=True)]
            for sign, end in ((-1, min), (1, max))
        )
        axes.errorbar(positions, heights, (below, above), fmt="none", ecolor="black", capsize=2, linewidth=0.8)
        if not names:
            single = [row[key] or 0 for row in some.values()]
            axes.plot([shift] * len(single), single, ".", color="black", alpha=0.3, markersize=4)
    labels = [*map(shown, names), *(["all"] if names else [f"{len(prompts)} prompts"]) * (len(prompts) > 1)]
    axes.set_xticks(
        range(len(labels)), labels, fontsize=8, rotation=20 * bool(names), ha="right" if names else "center"
    )
    axes.set_ylim(top=1.3 * axes.get_ylim()[1])  # room for the legend


def _sweep(speed: Any, tokens: Any, sides: Sequence[Row]) -> None:
    """Over K: the speed-up, and tokens per step with their break-even."""
    for number, name in enumerate(dict.fromkeys(map(drafter, sides))):
        some = sorted((side for side in sides if drafter(side) == name), key=lambda side: side["k"])
        at, colour = [side["k"] for side in some], f"C{number}"
        speed.plot(at, [side["speedup"] for side in some], "o-", color=colour, label=name)
        if all(side["speedup_95"] for side in some):
            speed.fill_between(at, *zip(*(side["speedup_95"] for side in some), strict=True), color=colour, alpha=0.15)
        measured = [side for side in some if side["tokens_per_step"]]
        at = [side["k"] for side in measured]
        tokens.plot(at, [side["tokens_per_step"] for side in measured], "o-", color=colour, label=name)
        tokens.plot(at, [side["break_even"] for side in measured], "--", color=colour)
    tokens.plot([], [], "--", color="grey", label="break-even")
    speed.fill_between([], [], color="grey", alpha=0.15, label="95 % interval")
    for axes, unit in ((speed, "speed-up over plain decoding"), (tokens, "tokens per request and decode step")):
        axes.set_xlabel("K: drafts per step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        _finish(axes, unit)


def _accepted(positions: Any, lengths: Any, sides: Sequence[Row], *, recorded: bool) -> None:
    """Acceptance by position, and the distribution of accepted tokens per draft."""
    width = 0.8 / max(len(sides), 1)
    for number, side in enumerate(sides):
        counted = "mean over prompts" if side["num_drafts"] is None else f"{side['num_drafts']:,} drafts"
        rates, parts = side["acceptance_by_position"], side["accepted_lengths"]
        positions.plot(range(1, len(rates) + 1), rates, marker="o", label=f"{side['method']}, {counted}")
        shift = (number - (len(sides) - 1) / 2) * width
        if parts:
            label = f"{side['method']}, mean {side['mean_acceptance_length'] - 1:.2f} accepted"
            lengths.bar([at + shift for at in range(len(parts))], parts, width, label=label)
    for axes, where, what in (
        # Earlier versions divided otherwise.
        (positions, "position in the draft", "share of accepted drafts" if recorded else "acceptance, as recorded"),
        (lengths, "accepted tokens per draft", "share of drafts"),
    ):
        if axes is lengths and not axes.has_data():  # of an older record
            axes.set_visible(False)
            continue
        axes.set_xlabel(where)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(0, 1)
        _finish(axes, what, plain=False)


def _finish(axes: Any, unit: str, *, plain: bool = True) -> None:
    if plain:
        axes.axhline(1, color="black", linewidth=0.8, label="plain decoding")
        axes.set_ylim(bottom=0)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize=8, frameon=False, ncols=2 if plain else 1)
