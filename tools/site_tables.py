"""Tables of recorded results, written when the site is built: `<!-- table: NAME -->` in a page becomes the table.

Below it stand its records, as below a plot (`site_plots`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from site_plots import read, sources

from specdec_hal.ops.page import table

Table = tuple[Iterable[str], Iterable[Iterable[str]]]
"""Head and rows."""


def methods() -> Table:
    """Tokens per step by method and most drafts."""
    found = {row["method"]: row["tokens_per_step"] for row in read("cpu-compare-sweep")["figures"]["pooled"]}
    kinds = {name.partition(" K=")[0]: name for name in found if " K=" in name}
    lengths = sorted({name.partition(" K=")[2] for name in found if " K=" in name})
    return ("method", *(f"K = {k}" for k in lengths)), (
        (f"`{kind}`", *(f"{found[f'{kind} K={k}']:.2f}" for k in lengths)) for kind in kinds
    )


def overlap() -> Table:
    """The engine with and without overlap and graphs."""
    rows = [row for row in read("h200-limits")["figures"]["host"] if row["part"] == "overlap"]
    by = {(row["run"], row["drafts"]): f"{row['tokens_per_s']:,.0f}" for row in rows}
    return ("", "plain", "8 drafts"), ((run, by[run, 0], by[run, 8]) for run in dict.fromkeys(run for run, _ in by))


def long_prompts() -> Table:
    """Decoding requests while long prompts arrive."""
    rows = [*read("h200-limits")["figures"]["host"], *read("h200-mixed-steps")["figures"]]
    return ("model", "prompts", "`mixed_step_ratio`", "gap, ms", "worst gap", "first token, ms"), (
        (
            row.get("model", "embedded"), str(row["long"]), "1.5" if "1.5" in row["run"] else "",
            f"{row['token_gap_ms']:.2f}",
            f"{row['worst_gap_during_prefill_ms']:.2f} ({row['gap_ratio']:.1f} times)", f"{row['first_token_ms']:.1f}",
        )
        for row in rows
        if "gap_ratio" in row
    )  # fmt: skip


def steps() -> Table:
    """Captured steps and prompts by model."""
    figures = read("h200-limits")["figures"]["steps"]
    by, prompts = dict[str, dict[str, str]](), dict[str, str]()
    for row in figures:
        if "prefill" in row:
            prompts[row["label"]] = f"{row['step_us']:,.0f}"
        else:
            cell = f"{row['step_us']:,.0f} ({row['share_of_floor']:.2f})"
            by.setdefault(f"{row['slots']}, {row['K']}", {})[row["label"]] = cell
    rows = [*by.items(), ("a prompt of 2,048", prompts)]
    return ("requests, K", *prompts), ((label, *(cells[model] for model in prompts)) for label, cells in rows)


def shares() -> Table:
    """Steps of few rows by model."""
    found = dict[str, list[str]]()
    for row in read("h200-shares")["figures"]["shares"]:
        found.setdefault(row["label"], []).append(f"{row['step_us']:,.0f} ({row['share_of_floor']:.2f})")
    return ("model", "1 request", "8 requests, 5 drafts each"), ((label, *cells) for label, cells in found.items())


def serving() -> Table:
    """The server beside the engine alone."""
    head = ("", "engine alone", "server", "share", "first token, ms", "p99")
    return head, (_served(read(name)["figures"]["output_path"]) for name in SERVING)


def _served(runs: dict[str, Any]) -> Iterable[str]:
    ((kind, run),) = runs.items()
    alone, served = run["engine"]["tokens_per_second"], run["split"]["tokens_per_second"]
    first = run["split"]["time_to_first_token"]
    speeds = (f"{alone:,.0f}", f"{served:,.0f}", f"{served / alone:.2f}")
    return kind, *speeds, f"{first['p50_ms']:.1f}", f"{first['p99_ms']:.1f}"


SERVING = ("h200-serving-ngram", "h200-serving-plain")


def turns() -> Table:
    """The last turn of a chat."""
    return ("model", "K", "cached, ms", "without the cache", "alone", "cached over alone"), (
        (row["model"], str(row["drafts"]), *(f"{row['last_turn_ms'][way]:.1f}" for way in ("cached", "whole", "alone")),
         f"{row['cached_over_alone']:.2f}")
        for row in read("h200-limits")["figures"]["turns"]
    )  # fmt: skip


def auto() -> Table:
    """Methods by name and by measurement: medians of turns."""
    found = dict[str, dict[str, str]]()
    for row in read("cpu-methods")["figures"]:
        load = f"T {row['temperature']}, {row['requests']}" if row["temperature"] else f"greedy, {row['requests']}"
        found.setdefault(load, {})[row["run"]] = f"{median(row['all_tokens_per_s']):,.0f}"
    runs = dict.fromkeys(run for speeds in found.values() for run in speeds)
    return ("requests", *runs), ((load, *speeds.values()) for load, speeds in found.items())


def host_time() -> Table:
    """Processor time of a step without a device."""
    found = dict[str, dict[int, float]]()
    for row in read("cpu-host-time")["figures"]:
        if "reader" in row:
            label = ", ".join([row["reader"], *(more for more in ("stop", "adaptive") if row.get(more))])
            found.setdefault(label, {})[row["drafts"]] = row["tenth" if row.get("adaptive") else "least"]
    return ("callback", "plain", "8 drafts"), (
        (label, *(f"{by[k]:.0f}" if k in by else "" for k in (0, 8))) for label, by in found.items()
    )


def http_cost() -> Table:
    """Processor time of the HTTP process."""
    found = read("cpu-http-cost")["figures"]["by_tokens_per_step"]
    return ("tokens of an event", "a request, us", "an event, us", "a token, us"), (
        (count, f"{cost['request_us']:,.0f}", f"{cost['event_us']:.1f}", f"{cost['token_us']:.1f}")
        for count, cost in found.items()
    )


def cpu_sampling() -> Table:
    """Sampling on a CPU by setting, on both backends."""
    figures, sizes = read("cpu-ops")["figures"], ("48 x 4,096", "8 x 151,936")
    names = [name for name in figures if name.startswith("sample_target, ") and name.endswith(sizes[0])]
    head = (f"{size}, {backend}" for size in sizes for backend in ("`cpu`", "`xpu_sim`"))
    return ("sampling", *head), (
        (
            name.removeprefix("sample_target, ").removesuffix(f", {sizes[0]}"),
            *(f"{figures[name.replace(sizes[0], size)][f'{backend}_us']:,.0f}" for size in sizes
              for backend in ("cpu", "xpu_sim")),
        )
        for name in names
    )  # fmt: skip


def xpu_sim() -> Table:
    """Ops of the emulator."""
    return ("op", "median, us", "minimum", "strict", "target"), (
        (name, f"{row['median_us']:,.1f}", f"{row['min_us']:,.1f}", str(row.get("strict_ratio", "")),
         f"{row['target_us']:,}" if row["target_us"] else "")
        for name, row in read("cpu-xpu-sim")["figures"].items()
    )  # fmt: skip


def fp8_accuracy() -> Table:
    """Models in FP8 beside bfloat16."""
    rows = [row for name in FP8 for row in read(name)["figures"]["accuracy"] if row["kind"] != "bfloat16"]
    return ("model", "beside bfloat16", "mean KL", "99th percentile", "same token"), (
        (row["model"], f"`{row['kind']}`", f"{row['mean_kl']:.2g}", f"{row['p99_kl']:.2g}", f"{row['top1']:.1%}")
        for row in rows
    )


FP8 = ("h200-fp8-accuracy", "cpu-fp8-smollm2")
TABLES: dict[str, tuple[Callable[[], Table], tuple[str, ...]]] = {
    "methods": (methods, ("cpu-compare-sweep",)),
    "overlap": (overlap, ("h200-limits",)),
    "long-prompts": (long_prompts, ("h200-limits", "h200-mixed-steps")),
    "steps": (steps, ("h200-limits",)),
    "shares": (shares, ("h200-shares",)),
    "serving": (serving, SERVING),
    "turns": (turns, ("h200-limits",)),
    "auto": (auto, ("cpu-methods",)),
    "host-time": (host_time, ("cpu-host-time",)),
    "http-cost": (http_cost, ("cpu-http-cost",)),
    "cpu-sampling": (cpu_sampling, ("cpu-ops",)),
    "xpu-sim": (xpu_sim, ("cpu-xpu-sim",)),
    "fp8-accuracy": (fp8_accuracy, FP8),
}
"""Function, and the records that it reads."""


def tabled(name: str, numbers: str) -> str:
    """The Markdown of a table; `numbers` is the way from the page to the folder of the records."""
    write, records = TABLES[name]
    return f'{table(*write())}\n\n<p class="record">{sources(records, numbers)}</p>\n'
