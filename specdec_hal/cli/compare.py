"""Decode the same prompts plainly and with the configured method; compare tokens and time.

Both run in one process on one loaded model, in turn, --repeat times each after an untimed warm-up. The speed-up is the
median plain time over the median speculative time. Exit status 1 if any token differs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from specdec_hal.cli.decoding import Progress, Run, decode, load, metrics_rows, progress_bar, runtime_for
from specdec_hal.cli.output import Output, add_config_arguments, table
from specdec_hal.cli.prompts import Prompt, add_prompt_arguments, read_prompts

if TYPE_CHECKING:
    from specdec_hal.models import TargetModel, Tokenizer
    from specdec_hal.runner import ModelRunner
    from specdec_hal.runtime import Runtime

HELP = "compare the configured method with plain decoding: tokens and speed"
WARM_UP_TOKENS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Configuration, prompts, and how often to repeat."""
    add_config_arguments(parser)
    add_prompt_arguments(parser)
    parser.add_argument("--repeat", metavar="N", type=_positive, default=3, help="timed runs of each (default: 3)")


def _positive(text: str) -> int:
    if not text.isdecimal() or (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text}")
    return value


def run(args: argparse.Namespace, output: Output) -> int:
    """Compare; 1 unless every token agrees."""
    runtime = runtime_for(args)
    prompts = read_prompts(args)
    model, tokenizer = load(runtime)
    both = _Both(runtime, model, tokenizer)
    both.warm_up(prompts)
    naive_runs, spec_runs = [], []
    total = 2 * args.repeat * len(prompts) * runtime.config.sampling.max_new_tokens
    with progress_bar("comparing", total) as progress:
        for _ in range(args.repeat):
            naive_runs.append(both.naive(prompts, progress))
            spec_runs.append(both.spec(prompts, progress))
    differences = _differences(prompts, [*naive_runs, *spec_runs], len(naive_runs))
    document = {
        "identical": not differences,
        "speedup": median(one.seconds for one in naive_runs) / median(one.seconds for one in spec_runs),
        "prompts": [prompt.name for prompt in prompts],
        "repeat": args.repeat,
        "backend": runtime.backend.name,
        "method": runtime.config.speculative.method,
        "naive": _figures(naive_runs),
        "spec": _figures(spec_runs),
        "differences": differences,
    }
    if output.json:
        output.document(document)
    else:
        _print(output, document, naive_runs[-1], spec_runs[-1])
    return 1 if differences else 0


class _Both:
    """Plain and speculative runners over one model. Each run has a runner of its own: fresh state, fresh metrics."""

    def __init__(self, runtime: Runtime, model: TargetModel, tokenizer: Tokenizer) -> None:
        self.runtime, self.model, self.tokenizer = runtime, model, tokenizer
        # The drafts' head-room may cost context; both sides get the same.
        longest = self._runner(runtime).max_model_len
        naive = runtime.config.naive()
        limited = naive.runner.model_copy(update={"max_model_len": longest})
        self.plain = runtime.with_config(naive.model_copy(update={"runner": limited}))

    def naive(self, prompts: Sequence[Prompt], progress: Progress) -> Run:
        """Decode plainly."""
        return decode(self._runner(self.plain), prompts, progress=progress)

    def spec(self, prompts: Sequence[Prompt], progress: Progress) -> Run:
        """Decode with the configured method."""
        return decode(self._runner(self.runtime), prompts, progress=progress)

    def warm_up(self, prompts: Sequence[Prompt]) -> None:
        """Let the framework do what it does only once."""
        sampling = self.runtime.config.sampling
        few = {"max_new_tokens": min(WARM_UP_TOKENS, sampling.max_new_tokens), "min_new_tokens": 0}
        for runtime in (self.plain, self.runtime):
            config = runtime.config.model_copy(update={"sampling": sampling.model_copy(update=few)})
            decode(self._runner(runtime.with_config(config)), prompts)

    def _runner(self, runtime: Runtime) -> ModelRunner:
        return runtime.runner(model=self.model, tokenizer=self.tokenizer)


def _differences(prompts: Sequence[Prompt], runs: Sequence[Run], naive: int) -> list[dict[str, Any]]:
    """Where a run first departs from the first plain run, per prompt."""
    found = []
    for at, prompt in enumerate(prompts):
        expected = runs[0].outputs[at].token_ids
        for number, one in enumerate(runs):
            got = one.outputs[at].token_ids
            if got == expected:
                continue
            shared = min(len(got), len(expected))
            position = next((i for i in range(shared) if got[i] != expected[i]), shared)
            found.append(
                {
                    "prompt": prompt.name,
                    "run": f"naive {number + 1}" if number < naive else f"spec {number - naive + 1}",
                    "position": position,
                    "expected": expected[position] if position < len(expected) else None,
                    "got": got[position] if position < len(got) else None,
                }
            )
    return found


def _figures(runs: Sequence[Run]) -> dict[str, Any]:
    """The median time of the runs and the counts, which are the same in each."""
    summary = runs[-1].summary
    seconds = median(one.seconds for one in runs)
    return {
        "tokens": runs[-1].tokens,
        "seconds": seconds,
        "tokens_per_second": runs[-1].tokens / seconds,
        "all_seconds": [one.seconds for one in runs],
        **{key: summary[key] for key in ("steps", "tokens_per_step", "drafted_tokens", "accepted_tokens")},
        **{key: summary[key] for key in ("acceptance_rate", "acceptance_by_position", "seconds_by_stage")},
    }


def _print(output: Output, document: dict[str, Any], naive: Run, spec: Run) -> None:
    rows = table("Comparison", "", "naive", document["method"])
    spec_rows = dict(metrics_rows(spec))
    for name, value in metrics_rows(naive):
        rows.add_row(name, value, spec_rows.get(name, ""))
    console = output.console
    console.print(rows)
    for one in document["differences"]:
        console.print(
            f"{one['prompt']}: run {one['run']} differs at token {one['position']}: "
            f"expected {one['expected']}, got {one['got']}",
            style="red",
            soft_wrap=True,
        )
    if document["identical"]:
        console.print("identical tokens", style="bold green")
    else:
        console.print("TOKENS DIFFER", style="bold red")
    console.print(f"speed-up: {document['speedup']:.2f} (medians of {document['repeat']} runs each, in turn)")
