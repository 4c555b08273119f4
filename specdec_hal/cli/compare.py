"""Decode the same prompts plainly and with the configured method, or with several; compare tokens and time.

All run in one process on one loaded model, in turns: three, and up to ten within a minute until the 95 % interval of
every speed-up is within 5 %, or --repeat. Engines are warm: each first decodes the same prompts untimed, to compile
kernels and capture graphs, and then forgets them, so that no drafts come from an earlier run. The speed-up is the
median plain time over the median speculative time; above the tokens per step it comes with a warning. With --sweep each
method runs with each K, and "break-even" is the number of tokens per step at which a method, with steps as long as
measured, would be as fast as plain decoding: drafts pay above it. Exit status 1 if any token differs.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any

from specdec_hal.bench.chart import Panel, Points, drawing
from specdec_hal.bench.pooled import interval_of_turns, pooled, prompt_label
from specdec_hal.bench.record import circumstances
from specdec_hal.cli import secrets
from specdec_hal.cli.decoding import (
    Progress,
    Run,
    decode,
    load,
    metrics_rows,
    number,
    numbers,
    params_of,
    runtime_for,
)
from specdec_hal.cli.output import Output, add_config_arguments, output_file, positive, read_runtime, writing
from specdec_hal.cli.process import complain
from specdec_hal.cli.prompts import Prompt, add_prompt_arguments, read_prompts
from specdec_hal.cli.tables import Rows
from specdec_hal.engine.progress import progress_bar
from specdec_hal.errors import RequestError, SpecDecError
from specdec_hal.text import one_line

if TYPE_CHECKING:
    from specdec_hal.config import Config
    from specdec_hal.engine.runtime import Runtime
    from specdec_hal.runner import ModelRunner, SamplingParams

Runs = dict[str, list[Run]]
"""The runs of each side: "naive", and "spec" or the names of methods."""

HELP = "compare the configured method, or several, with plain decoding: tokens and speed of warm engines"
NAIVE, ALL = "naive", "all"
_MOST_PROMPTS = 10
"""Most prompts with their own table rows; more are only pooled."""
_LEAST_TURNS, _MOST_TURNS, _MOST_SECONDS, _NARROW = 3, 10, 60.0, 1.05
"""Turns without --repeat: more than the least only while the timed runs of the prompts took less than so many seconds,
and an end of an interval is further from its middle than this ratio."""
_NOISE = 1.02
"""Most speed-up over the bound of tokens per step that is not worth a warning."""
_WIDEST = 120
_COUNTED = (
    "steps",
    "tokens_per_step",
    "num_drafts",
    "drafted_tokens",
    "accepted_tokens",
    "mean_acceptance_length",
    "acceptance_rate",
    "acceptance_by_position",
    "seconds_by_stage",
)
"""Keys of a runner's summary that documents have."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Configuration, prompts, methods, and how often to repeat."""
    add_config_arguments(parser)
    add_prompt_arguments(parser)
    parser.add_argument(
        "--method",
        dest="methods",
        metavar="NAME,NAME",
        type=lambda text: list(dict.fromkeys(text.split(","))),
        help="compare these methods, prompt by prompt, instead of the configured one; all: every method that the "
        "checkpoint and the configuration allow",
    )
    parser.add_argument(
        "--sweep",
        metavar="K,K",
        type=lambda text: list(dict.fromkeys(map(positive, text.split(",")))),
        help="run with each of these values of speculative.num_speculative_tokens; adds the break-even",
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        type=output_file,
        help="write figures, command, commit, machine, versions and configuration; bench --read shows them",
    )
    parser.add_argument(
        "--repeat",
        metavar="N",
        type=positive,
        help=f"timed runs per side, on warm engines (default: {_LEAST_TURNS} to {_MOST_TURNS}, until the interval of "
        "each speed-up is within 5 %%)",
    )
    parser.add_argument(
        "--plot", metavar="FILE", type=output_file, help="draw the acceptance by position, at the largest K (.svg)"
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Compare; 1 unless every token agrees."""
    if args.plot is not None and args.plot.suffix != ".svg":
        raise RequestError(f"--plot: expected a file FILE.svg, got {args.plot}; use an SVG, which browsers show")
    runtime = runtime_for(args)
    if args.methods is None and args.sweep is not None:
        args.methods = [runtime.config.speculative.method]
    others = {"spec": runtime} if args.methods is None else _runtimes(args, runtime)
    prompts = read_prompts(args)
    _say_once()
    sides = _Sides(runtime, others, optional=args.methods == [ALL], sweep=args.sweep is not None)
    batches = [prompts] if args.methods is None else [[prompt] for prompt in prompts]
    total = len(sides.runtimes) * len(prompts) * runtime.config.sampling.max_new_tokens
    with progress_bar("comparing", total * (args.repeat or _LEAST_TURNS), "tokens") as progress:
        seconds = _MOST_SECONDS / len(batches)
        compared = [sides.compare(batch, args.repeat, progress, seconds) for batch in batches]
    differences = [one for batch, runs in zip(batches, compared, strict=True) for one in _differences(batch, runs)]
    turns = max(len(runs[NAIVE]) for runs in compared)
    document: dict[str, Any] = {"identical": not differences, "repeat": turns, "backend": runtime.backend.name}
    document["model"] = runtime.config.served_name
    if args.methods is None:
        (runs,) = compared
        document |= {
            **_speedups(runs, "spec"),
            "prompts": [prompt.name for prompt in prompts],
            "seeds": [one.seed for one in runs[NAIVE][0].outputs],
            "method": sides.runtimes["spec"].config.speculative.method,
            "naive": _figures(runs[NAIVE]),
            "spec": _figures(runs["spec"]),
            "differences": differences,
        }
    else:
        document |= {
            "strategy": runtime.config.speculative.verify_strategy.name.lower(),
            "temperature": runtime.config.sampling.temperature,
            "rows": [
                {"prompt": prompt.name, "method": label, **sides.k_of(label), "seed": runs[label][0].outputs[0].seed}
                | {**_speedups(runs, label), **_figures(runs[label])}
                for prompt, runs in zip(prompts, compared, strict=True)
                for label in runs
            ],
            "differences": differences,
        }
        document["pooled"] = pooled(document["rows"])
    document["warnings"] = warnings(document)
    if args.record is not None:
        header = circumstances(secrets.redact_command(args.command_line))
        record = {**header, "config": runtime.config.model_dump(mode="json"), "figures": document}
        with writing(args.record):
            args.record.write_text(json.dumps(record, indent=1) + "\n")
    if args.plot is not None:
        with writing(args.plot):
            args.plot.write_text(picture(document))
    if output.json:
        output.document(document)
    else:
        show(document, output)
    return 1 if differences else 0


def _runtimes(args: argparse.Namespace, runtime: Runtime) -> dict[str, Runtime]:
    """One runtime per method and K; ConfigError for a method that is unknown or lacks settings."""
    found, every = {}, args.methods == [ALL]
    sides = product(runtime.registry.proposers() if every else args.methods, args.sweep or [None])
    for method, k in sides:
        if method != NAIVE:  # the baseline
            overrides = [*args.overrides, f"speculative.method={method}"]
            if k is not None:  # of K drafts, unless the user wants otherwise
                overrides = ["speculative.adaptive=false", *overrides, f"speculative.num_speculative_tokens={k}"]
            label = method if k is None else f"{method} K={k}"
            try:
                chosen = read_runtime(argparse.Namespace(config=args.config, overrides=overrides))
            except SpecDecError as error:
                if not every:
                    raise
                _left_out(label, error)
            else:
                found[label] = runtime.with_config(chosen.config)
    return found


def _say_once() -> None:
    """Log each warning once, although every side builds several runners."""
    seen = Counter[str]()

    def first(record: logging.LogRecord) -> bool:
        seen[record.getMessage()] += 1
        return seen[record.getMessage()] == 1

    for handler in logging.getLogger("specdec_hal").handlers:
        handler.addFilter(first)


def _left_out(method: str, error: SpecDecError) -> None:
    complain(f"without '{method}': {one_line(error)}")


class _Sides:
    """Plain decoding and `others` over one model, whose KV cache each new runner takes over.

    `optional`: report and skip sides that cannot run here. `sweep`: the others differ in K.
    """

    def __init__(self, runtime: Runtime, others: dict[str, Runtime], *, optional: bool, sweep: bool) -> None:
        self.model, self.tokenizer = load(runtime)
        self._sweep = sweep
        # Drafts may cost context, so all sides get the same. A runner resolves "auto".
        configs: dict[str, Config] = {}
        longest = self._runner(runtime).max_model_len
        for label, side in {NAIVE: runtime.naive(), **others}.items():
            try:
                runner = self._runner(side)
            except SpecDecError as error:
                if not optional or label == NAIVE:
                    raise
                _left_out(label, error)
                continue
            configs[label], longest = runner.config, min(longest, runner.max_model_len)

        def limited(config: Config) -> Config:
            return config.model_copy(update={"runner": config.runner.model_copy(update={"max_model_len": longest})})

        self.runtimes = {label: runtime.with_config(limited(config)) for label, config in configs.items()}

    def k_of(self, label: str) -> dict[str, int]:
        """The key "k" of a row of a sweep; empty for plain decoding and without a sweep."""
        speculative = self.runtimes[label].config.speculative
        return {"k": speculative.num_speculative_tokens} if self._sweep and label != NAIVE else {}

    def compare(self, prompts: Sequence[Prompt], repeat: int | None, progress: Progress, seconds: float) -> Runs:
        """Decode the prompts as one batch on every side in turn, each with the same seed.

        `repeat` times, or until the speed-ups are known well enough or `seconds` have passed.
        """
        end = time.monotonic() + seconds
        runs: Runs = {label: [] for label in self.runtimes}
        params = params_of(self.runtimes[NAIVE].config, prompts)
        while len(runs[NAIVE]) < (repeat or _MOST_TURNS):
            for label, runtime in self.runtimes.items():
                runner = self._warm(runtime, prompts, params)
                runs[label].append(decode(runner, prompts, progress=progress, params=params))
            if repeat is None and _settled(runs, time.monotonic() >= end):
                break
        return runs

    def _warm(self, runtime: Runtime, prompts: Sequence[Prompt], params: Sequence[SamplingParams]) -> ModelRunner:
        """A runner that has decoded and forgotten the prompts."""
        runner = self._runner(runtime)
        decode(runner, prompts, params=params)
        if runner.summary()["graphs"]:
            decode(runner, prompts, params=params)  # plans are captured on their second use
        runner.forget()
        gc.collect()  # free the previous runner and its graphs outside the timed part
        return runner

    def _runner(self, runtime: Runtime) -> ModelRunner:
        return runtime.runner(model=self.model, tokenizer=self.tokenizer)


def _settled(runs: Runs, late: bool) -> bool:
    """Whether another turn is not worth its time."""
    if late or len(runs[NAIVE]) < _LEAST_TURNS:
        return len(runs[NAIVE]) >= _LEAST_TURNS
    intervals = (_speedups(runs, label)["speedup_95"] for label in runs if label != NAIVE)
    return all(high / low <= _NARROW**2 for low, high in intervals)


def _differences(prompts: Sequence[Prompt], runs: Runs) -> list[dict[str, Any]]:
    """The first difference of each run from the first plain run, per prompt."""
    found = []
    for at, prompt in enumerate(prompts):
        expected = runs[NAIVE][0].outputs[at].token_ids
        for name, one in ((f"{label} {n + 1}", one) for label, some in runs.items() for n, one in enumerate(some)):
            got = one.outputs[at].token_ids
            if got == expected:
                continue
            shared = min(len(got), len(expected))
            position = next((i for i in range(shared) if got[i] != expected[i]), shared)
            found.append(
                {
                    "prompt": prompt.name,
                    "run": name,
                    "position": position,
                    "expected": expected[position] if position < len(expected) else None,
                    "got": got[position] if position < len(got) else None,
                }
            )
    return found


def _speedups(runs: Runs, label: str) -> dict[str, Any]:
    """Speed-up over plain decoding: by medians, of each turn, and the 95 % interval of the turns."""
    plain, seconds = ([one.seconds for one in runs[side]] for side in (NAIVE, label))
    turns = [before / after for before, after in zip(plain, seconds, strict=True)]
    interval = None if label == NAIVE else interval_of_turns(turns)
    return {"speedup": median(plain) / median(seconds), "speedup_95": interval, "all_speedups": turns}


def _figures(runs: Sequence[Run]) -> dict[str, Any]:
    """The median time of the runs, and their common counts."""
    summary = runs[-1].summary
    seconds = median(one.seconds for one in runs)
    return {
        "tokens": runs[-1].tokens,
        "seconds": seconds,
        "tokens_per_second": runs[-1].tokens / seconds,
        "all_seconds": [one.seconds for one in runs],
        **{key: summary[key] for key in _COUNTED},
    }


def warnings(document: Mapping[str, Any]) -> list[str]:
    """A line for each speed-up above the tokens per step, which no step with drafts can bring."""
    found = []
    rows = document.get("rows") or [
        {"prompt": "", "method": NAIVE, **document[NAIVE]},
        {"prompt": "", "method": document["method"], **document["spec"], "speedup": document["speedup"]},
    ]
    plain = {row["prompt"]: row for row in rows if row["method"] == NAIVE}
    for row in rows:
        per_step = row.get("tokens_per_step")
        if row["method"] == NAIVE or not per_step:
            continue
        # In a batch, one request may take all steps of the end.
        steps, plain_steps = row.get("steps"), plain.get(row["prompt"], {}).get("steps")
        bound = max(per_step, plain_steps / steps if steps and plain_steps else 0.0)
        if row["speedup"] > _NOISE * bound:
            prompt = f"{prompt_label(row['prompt'])}, " if row["prompt"] else ""
            found.append(
                f"{prompt}{row['method']}: {row['speedup']:.2f} times as fast at {per_step:.2f} tokens per step; a "
                "step with drafts takes no less time than a plain one, so plain runs were disturbed: repeat this on an "
                "idle machine, with more tokens or a larger --repeat"
            )
    return found


def picture(document: Mapping[str, Any]) -> str:
    """Acceptance by position as an SVG: a panel of all prompts, and one for each of a few; the largest K of a sweep."""
    rows = document.get("rows") or [{**document["spec"], "method": document["method"], "prompt": "All prompts"}]
    together = document.get("pooled", [])
    k = max((row["k"] for row in rows if "k" in row), default=None)

    def lines(some: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
        return {
            row["method"].removesuffix(f" K={k}"): list(enumerate(row["acceptance_by_position"]))
            for row in some
            if row["method"] != NAIVE and row.get("k") == k
        }

    by_prompt: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_prompt.setdefault(prompt_label(row["prompt"]), []).append(row)
    panels = {f"All {together[0]['prompts']} prompts": together} if len(by_prompt) > 1 else {}
    panels |= by_prompt if len(by_prompt) <= _MOST_PROMPTS else {}
    drawn = [
        Panel(title, "draft position", "share of drafts accepted", lines(some), top=1.0, whole=True)
        for title, some in panels.items()
    ]
    at = "" if k is None else f", K = {k}"
    return drawing(f"Acceptance by position, {document.get('model', 'model unknown')}{at}", drawn)


def show(document: Mapping[str, Any], output: Output) -> None:
    """Print a document of `compare --json` as tables and a verdict."""
    together = document.get("pooled", ())
    if not together or together[0]["prompts"] <= _MOST_PROMPTS:
        (_methods(document) if "rows" in document else _comparison(document)).print(output.console)
    if together and (together[0]["prompts"] > 1 or any(row.get("k") for row in together)):
        for rows in _pooled(document):
            rows.print(output.console)
    _print_verdict(output, document)


def _titled(title: str, document: Mapping[str, Any]) -> str:
    """With the model, which records of older versions do not name."""
    return f"{title}, {document['model']}" if "model" in document else title


def _comparison(document: Mapping[str, Any]) -> Rows:
    rows = Rows(_titled("Comparison", document), ("", NAIVE, document["method"]), widest=_WIDEST)
    spec_rows = dict(metrics_rows(document["spec"]))
    plain_rows = dict(metrics_rows(document[NAIVE]))
    for name in {**plain_rows, **spec_rows}:
        rows.add_row(name, plain_rows.get(name, ""), spec_rows.get(name, ""))
    return rows


def _methods(document: Mapping[str, Any]) -> Rows:
    columns = (
        *("prompt", "method", "tokens per step", "speed-up", "95 % of turns", "tokens per second"),
        *("mean acceptance length", "acceptance at position 0, 1, ..."),
    )
    rows = Rows(_titled("Methods", document), columns, spare=(5, 6, 4), widest=_WIDEST)
    for row in document["rows"]:
        figures = [number(row.get(name)) for name in ("tokens_per_step", "speedup")]
        figures.append(_interval(row.get("speedup_95")))
        figures += [number(row.get(name)) for name in ("tokens_per_second", "mean_acceptance_length")]
        rows.add_row(prompt_label(row["prompt"]), row["method"], *figures, numbers(row["acceptance_by_position"]))
    return rows


def _interval(ends: Sequence[float] | None) -> str:
    return "-".join(map(number, ends or ()))


def _pooled(document: Mapping[str, Any]) -> Iterator[Rows]:
    """Speed and acceptance over all prompts: plain decoding, then the others by speed-up."""
    together, interval = document["pooled"], "95 % interval"
    prompts = together[0]["prompts"]
    what = f"All {prompts} prompts" if prompts > 1 else "The prompt"
    times = ("method", "tokens per step", interval, "break-even", "speed-up", interval)
    speed = Rows(_titled(what, document), times, spare=(2,), widest=_WIDEST)
    shares = ("method", "mean acceptance length", "acceptance at position 0, 1, ...", "share with 0, 1, ... accepted")
    acceptance = Rows(_titled(f"{what}: acceptance", document), shares, spare=(3,), widest=_WIDEST)
    for row in sorted(together, key=lambda row: (row["method"] != NAIVE, -row["speedup"])):
        cells = [row["method"]]
        for name in ("tokens_per_step", "speedup"):
            cells += [number(row[name]), _interval(row.get(f"{name}_95"))]
        cells.insert(3, number(row.get("break_even")))
        speed.add_row(*cells)
        if row["method"] != NAIVE:
            parts = (numbers(row.get(name, ())) for name in ("acceptance_by_position", "accepted_lengths"))
            acceptance.add_row(row["method"], number(row["mean_acceptance_length"]), *parts)
    yield speed
    if acceptance.cells:
        yield acceptance


def _print_verdict(output: Output, document: Mapping[str, Any]) -> None:
    console = output.console
    for one in document["differences"]:
        console.print(
            f"{one['prompt']}: run {one['run']} differs at token {one['position']}: "
            f"expected {one['expected']}, got {one['got']}",
            style="red",
            soft_wrap=True,
        )
    for line in warnings(document):
        console.print(f"warning: {line}", style="yellow", soft_wrap=True)
    if document["identical"]:
        console.print("identical tokens", style="bold green")
    else:
        console.print("TOKENS DIFFER", style="bold red")
    medians = f"medians of {document['repeat']} runs each, in turns" if document["repeat"] > 1 else "one run each"
    if "speedup" not in document:
        console.print(f"({medians})")
        return
    interval = f"; 95 % of turns {_interval(document['speedup_95'])}" if document.get("speedup_95") else ""
    console.print(f"speed-up: {document['speedup']:.2f} ({medians}{interval})")
