"""Plots of recorded results, drawn when the site is built: `<!-- plot: NAME -->` in a page becomes the plot.

A plot is an SVG inside the page. Its text and axes take the page's own colour, so that it fits both schemes. Below it
stand the records that it was drawn from, each with its command, machine, commit and date.
"""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
INK = "#010203"
"""Stands for the colour of the page's text."""
OURS, DRAFTED, PEER, OTHER, FLOOR = "#2a7de1", "#00a37a", "#d9822b", "#b0569b", "#8a8f98"
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "site", "font.family": "sans-serif", "font.size": 10,
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "axes.titlesize": 10.5,
}  # fmt: skip


def read(name: str) -> dict[str, Any]:
    """The record `NAME.json`."""
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return record


def grouped(axes: Axes, groups: Sequence[str], bars: dict[str, tuple[str, Sequence[float | None]]], unit: str) -> None:
    """Upright bars side by side: `bars` has colour and heights (one for each group, None where there is none)."""
    width = 0.84 / len(bars)
    for i, (label, (color, heights)) in enumerate(bars.items()):
        places = [at + (i - (len(bars) - 1) / 2) * width for at in range(len(groups))]
        known = [(x, height) for x, height in zip(places, heights, strict=True) if height is not None]
        axes.bar([x for x, _ in known], [height for _, height in known], 0.92 * width, color=color, label=label)
        for x, height in known:
            text = f"{height / 1000:,.0f}k" if height >= 10_000 else f"{height:,.0f}"
            axes.annotate(text, (x, height), (0, 2), textcoords="offset points", ha="center", fontsize=7.5)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(unit)
    axes.set_yscale("log")


def above(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend above all panels."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns)


def panels(count: int, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """Panels beside each other."""
    figure = Figure(figsize=(8.6, height), layout="constrained")
    return figure, [figure.add_subplot(1, count, 1 + i) for i in range(count)]


def ops_and_peers() -> Figure:
    """Ops beside the fastest peer; of several cases with the same peer, the one that takes longest here."""
    worst = dict[tuple[str, float], tuple[str, float, float | None]]()
    for row in (row for name in SUITES for row in read(name)["rows"]):
        peers = [(times["warm"], name) for name, times in (row.get("peers_us") or {}).items() if times.get("warm")]
        if peers and row["warm_us"]:
            peer, name = min(peers)
            ours = (row["label"].replace(", spread 2", ""), row["warm_us"]["median"], row.get("warm_floor_us"))
            worst[name, peer] = max(ours, worst.get((name, peer), ours), key=lambda one: one[1])
    found = [(*ours, *peer) for peer, ours in worst.items()]
    figure, (axes,) = panels(1, 0.9 + 0.42 * len(found))
    for i, (_, ours, floor, name, peer) in enumerate(found):
        axes.barh(i + 0.19, peer, 0.36, color=PEER, label="fastest other" if i == 0 else None)
        axes.barh(i - 0.19, ours, 0.36, color=OURS, label="here" if i == 0 else None)
        axes.annotate(f"{ours:.1f}", (ours, i - 0.19), (3, 0), textcoords="offset points", va="center", fontsize=8)
        axes.annotate(f"{peer:g} {name}", (peer, i + 0.19), (3, 0), textcoords="offset points", va="center", fontsize=8)
        if floor:
            label = "bytes that must move" if i == 0 else None
            axes.plot([floor, floor], [i - 0.42, i + 0.42], color=INK, lw=1.2, label=label)
    axes.set_yticks(range(len(found)), [label for label, *_ in found], fontsize=8)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.set_xlim(right=1.9 * max(peer for *_, peer in found))
    axes.set_xlabel("us in a CUDA graph, warm")
    above(figure, axes, 3)
    return figure


SUITES = ("h200-sampling", "h200-logprobs", "h200-verify", "h200-ngram")


def gpu_throughput() -> Figure:
    """Tokens per second by requests: plain, drafted, transformers."""
    rows = [row for row in read("h200-throughput")["figures"] if row["part"] == "throughput"]
    requests, dtypes = sorted({row["requests"] for row in rows}), dict.fromkeys(row["dtype"] for row in rows)
    figure, each = panels(len(dtypes), 2.8)
    for axes, dtype in zip(each, dtypes, strict=True):
        by = {(row["run"], row["requests"]): row["tokens_per_s"] for row in rows if row["dtype"] == dtype}
        runs = {"plain": OURS, "drafts": DRAFTED, "transformers": PEER}
        names = {"plain": "without drafts", "drafts": "n-gram drafts", "transformers": "transformers, static batch"}
        bars = {names[run]: (color, [by.get((run, n)) for n in requests]) for run, color in runs.items()}
        grouped(axes, [f"{n}" for n in requests], bars, "tokens/s")
        axes.set_xlabel("concurrent requests")
        axes.set_title(dtype)
    above(figure, each[0], 3)
    return figure


def gpu_methods() -> Figure:
    """What the default chooses beside methods by name."""
    rows = read("h200-methods")["figures"]
    kinds = sorted({(row["temperature"], row["requests"]) for row in rows})
    names = {"plain": "without drafts", "ngram": "n-gram", "eagle3": "EAGLE-3", "default": "the default"}
    by = {(row["temperature"], row["requests"], row["run"]): row["tokens_per_s"] for row in rows}
    figure, (axes,) = panels(1, 3)
    colors = (FLOOR, DRAFTED, OTHER, OURS)
    bars = {
        name: (color, [by.get((*kind, run)) for kind in kinds])
        for (run, name), color in zip(names.items(), colors, strict=True)
    }
    groups = [f"T {temperature:g}, {n} request{'s' * (n > 1)}" for temperature, n in kinds]
    grouped(axes, groups, bars, "tokens/s")
    above(figure, axes, 4)
    return figure


def steps() -> Figure:
    """Share of the floor of a captured step, by requests."""
    rows = [row for row in read("h200-limits")["figures"]["steps"] if "share_of_floor" in row and "K" in row]
    figure, both = panels(2, 3)
    for axes, drafts in zip(both, (0, 5), strict=True):
        for label, color in zip(dict.fromkeys(row["label"] for row in rows), (OTHER, DRAFTED, OURS), strict=False):
            some = [row for row in rows if row["label"] == label and row["K"] == drafts]
            slots, shares = [row["slots"] for row in some], [row["share_of_floor"] for row in some]
            axes.plot(range(len(slots)), shares, "o-", color=color, label=label, ms=4)
            axes.set_xticks(range(len(slots)), [str(n) for n in slots])
        axes.set_ylim(0, 1)
        axes.set_title("one token per request" if drafts == 0 else f"{drafts} drafts per request")
        axes.set_xlabel("requests")
        axes.grid(axis="y", alpha=0.25)
    both[0].set_ylabel("floor / time")
    above(figure, both[0], 3)
    return figure


def recurrent() -> Figure:
    """Share of the floor of decoders with recurrent layers."""
    rows = read("h200-recurrent-models")["figures"]["rows"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, both = panels(len(models), 3)
    for axes, model in zip(both, models, strict=True):
        for storage, style in (("states", "o-"), ("replay", "s--")):
            for drafts, color in ((0, FLOOR), (3, OURS)):
                some = [
                    row for row in rows
                    if (row["model"], row["storage"], row["K"]) == (model, storage, drafts) and "step_us" in row
                ]  # fmt: skip
                shares = [row["share_of_floor"] for row in some]
                ticks = [str(row["slots"]) for row in some]
                axes.plot(ticks, shares, style, color=color, ms=4, label=f"K {drafts}, {storage}")
        axes.set_title(model)
        axes.set_xlabel("requests")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.25)
    both[0].set_ylabel("floor / time")
    above(figure, both[0], 4)
    return figure


def cpu_peers() -> Figure:
    """Tokens per second on two cores beside other engines."""
    rows = read("cpu-engine")["figures"]["rows"]
    figure, both = panels(2)
    peers = {"this commit": ("here", OURS), "vllm": ("vLLM, CPU build", OTHER), "transformers": ("transformers", PEER)}
    peers = {key: peer for key, peer in peers.items() if any(key in row for row in rows)}
    for axes, drafted in zip(both, (False, True), strict=True):
        some = [row for row in rows if bool(row["drafts"]) == drafted]
        bars = {name: (color, [row.get(key) for row in some]) for key, (name, color) in peers.items()}
        groups = [f"{row['requests']}" if row["model"] == "tiny-py-lm" else "1, SmolLM2" for row in some]
        grouped(axes, groups, bars, "tokens/s")
        axes.set_title("n-gram drafts, prompt look-up" if drafted else "without drafts")
        axes.set_xlabel("concurrent requests")
    above(figure, both[0], 3)
    return figure


def cpu_load() -> Figure:
    """Tokens per second and first tokens of two servers, by clients."""
    load = read("cpu-serving-load")["figures"]["load"]
    clients = [key for key in load if key.isdigit()]
    kinds = {
        "ours_plain": ("here", OURS), "ours_ngram": ("here, n-gram", DRAFTED),
        "vllm_plain": ("vLLM", PEER), "vllm_ngram": ("vLLM, n-gram", OTHER),
    }  # fmt: skip
    kinds = {kind: look for kind, look in kinds.items() if kind in load[clients[0]]}
    figure, both = panels(2)
    values: Iterable[tuple[Axes, str, Callable[[Any], float]]] = (
        (both[0], "tokens/s", lambda run: run["tokens_per_second"]),
        (both[1], "ms to the first token, median", lambda run: run["time_to_first_token"]["p50_ms"]),
    )
    for axes, unit, value in values:
        bars = {name: (color, [value(load[n][kind]) for n in clients]) for kind, (name, color) in kinds.items()}
        grouped(axes, clients, bars, unit)
        axes.set_yscale("linear")
        axes.set_xlabel("clients")
    above(figure, both[0], 4)
    return figure


def cpu_ops() -> Figure:
    """How many times as fast as the emulator the backend cpu is."""
    ratios = [case["ratio"] for case in read("cpu-ops")["figures"].values()]
    figure, (axes,) = panels(1, 2.4)
    edges = [2 ** (i / 4) for i in range(int(4 * 5.5))]
    axes.hist([min(ratio, edges[-1]) for ratio in ratios], edges, color=OURS, rwidth=0.92)
    axes.axvline(1, color=INK, lw=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("time of the emulator / time of the backend cpu")
    axes.set_ylabel("cases")
    axes.set_title(f"{len(ratios)} cases: at least {min(ratios):.2f} times as fast, median {median(ratios):.1f}")
    return figure


PLOTS: dict[str, tuple[Callable[[], Figure], str, tuple[str, ...]]] = {
    "ops-and-peers": (
        ops_and_peers,
        "Ops on an H200 beside the fastest other implementation that was measured.",
        SUITES,
    ),
    "gpu-throughput": (
        gpu_throughput,
        "The embedded model on an H200, greedy.",
        ("h200-throughput",),
    ),
    "gpu-methods": (gpu_methods, "What the default gives beside methods by name.", ("h200-methods",)),
    "steps": (steps, "Share of the floor, the time to read weights and KV cache, of a step.", ("h200-limits",)),
    "recurrent": (recurrent, "Share of the floor with recurrent layers.", ("h200-recurrent-models",)),
    "cpu-peers": (
        cpu_peers,
        "Whole decodes on two cores: the embedded model, SmolLM2-135M.",
        ("cpu-engine",),
    ),
    "cpu-load": (cpu_load, "Servers on two cores, the embedded model.", ("cpu-serving-load",)),
    "cpu-ops": (cpu_ops, "All recorded cases: how many times as fast as the emulator.", ("cpu-ops",)),
}
"""Function, what it shows, and the records that it reads."""


def drawn(name: str, numbers: str) -> str:
    """The HTML of a plot; `numbers` is the way from the page to the folder of the records."""
    draw, about, records = PLOTS[name]
    with mpl.rc_context(STYLE):
        file = io.StringIO()
        draw().savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = re.sub(r"^.*?<svg", "<svg", file.getvalue(), count=1, flags=re.DOTALL)
    svg = re.sub(r"(\bid=\"|xlink:href=\"#|url\(#)", rf"\g<1>{name}-", svg)  # ids are of the page
    svg = svg.replace(INK, "currentColor").replace("<svg", f'<svg role="img" aria-label="{html.escape(about)}"', 1)
    return (
        f'<figure class="plot">{svg}<figcaption>{html.escape(about)} {sources(records, numbers)}</figcaption></figure>'
    )


def sources(names: Sequence[str], numbers: str) -> str:
    """Links to records, with machine, commit, date and command."""
    return "Recorded: " + "; ".join(_source(name, numbers) for name in names) + "."


def _source(name: str, numbers: str) -> str:
    record = read(name)
    where = record["machine"].get("gpu") or record["machine"]["cpu"]
    command = re.sub(r" --(out|record) \S+", "", record["command"])
    about = html.escape(f"{where}, {record['commit'][:8]}, {record['date'][:10]}")
    return f'<a href="{numbers}{name}.json">{name}</a> ({about}: <code>{html.escape(command)}</code>)'
