"""Run prompts through a ModelRunner, for `generate` and `compare`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdec_hal.cli.output import read_runtime
from specdec_hal.cli.prompts import Prompt

if TYPE_CHECKING:
    from specdec_hal.config import Config
    from specdec_hal.engine.runtime import Runtime
    from specdec_hal.models import Tokenizer
    from specdec_hal.plugin.model import TargetModel
    from specdec_hal.runner import ModelRunner, RequestOutput, SamplingParams, StreamDelta
    from specdec_hal.runner.journal import Record

Progress = Callable[..., None]
"""Called with the number of tokens just generated, as `advance`."""


@dataclass(frozen=True)
class Run:
    """One pass over all prompts. `seconds` is wall time without loading; `summary` the runner's metrics."""

    outputs: list[RequestOutput]
    seconds: float
    summary: dict[str, Any]

    @property
    def tokens(self) -> int:
        """Generated tokens of all prompts."""
        return sum(len(output.token_ids) for output in self.outputs)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over wall time."""
        return self.tokens / self.seconds

    @property
    def figures(self) -> dict[str, Any]:
        """The runner's metrics, and those of the pass."""
        timed = {name: getattr(self, name) for name in ("tokens", "seconds", "tokens_per_second")}
        return {**self.summary, **timed}


def runtime_for(args: argparse.Namespace) -> Runtime:
    """The configuration, with ``--max-new-tokens`` taken into account."""
    if args.max_new_tokens is not None:
        args.overrides = [*args.overrides, f"sampling.max_new_tokens={args.max_new_tokens}"]
    return read_runtime(args)


def load(runtime: Runtime) -> tuple[TargetModel, Tokenizer]:
    """The model and its tokenizer."""
    return runtime.load_model(), runtime.load_tokenizer()


def params_of(config: Config, prompts: Sequence[Prompt]) -> list[SamplingParams]:
    """Sampling parameters of each prompt; sampled ones get their own seeds."""
    from specdec_hal.runner import SamplingParams

    return [SamplingParams.default(config).seeded() for _ in prompts]


def decode(
    runner: ModelRunner,
    prompts: Sequence[Prompt],
    on_delta: Callable[[int, StreamDelta], None] | None = None,
    progress: Progress | None = None,
    saved: Sequence[Record] = (),
    params: Sequence[SamplingParams] | None = None,
) -> Run:
    """Decode all prompts as one batch; `on_delta` gets the prompt's index and each step's output.

    `saved`: requests of a journal, from which prompts of the same name resume. `params`: per prompt; None: as
    configured.
    """
    from specdec_hal.runner import Request

    assert runner.tokenizer is not None
    params = params_of(runner.config, prompts) if params is None else params
    index = {prompt.name: at for at, prompt in enumerate(prompts)}
    runner.restore(list(saved))
    known = {record["request_id"] for record in saved}
    for prompt, wanted in zip(prompts, params, strict=True):
        if prompt.name not in known:
            tokens = runner.tokenizer.encode(prompt.text, prompt.add_special_tokens)
            runner.add_request(Request(prompt.name, tokens, wanted))
    start = time.perf_counter()
    while runner.has_requests:
        for delta in runner.step():
            if on_delta is not None:
                on_delta(index[delta.request_id], delta)
            if progress is not None:
                progress(advance=len(delta.token_ids))
    seconds = time.perf_counter() - start
    finished = runner.take_finished()
    return Run([finished[prompt.name] for prompt in prompts], seconds, runner.summary())


def metrics_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures of a run for a table: (name, value). `summary`: :attr:`Run.figures`, or its part in documents."""
    stages = sorted(summary["seconds_by_stage"].items(), key=lambda item: -item[1])
    return [
        ("generated tokens", str(summary["tokens"])),
        ("seconds", f"{summary['seconds']:.2f}"),
        ("tokens per second", f"{summary['tokens_per_second']:.1f}"),
        ("steps of the batch, with prefill", str(summary["steps"])),
        ("steps by method", ", ".join(f"{name} {steps}" for name, steps in summary.get("steps_by_method", {}).items())),
        ("tokens per request and decode step", number(summary["tokens_per_step"])),
        ("drafts", str(summary.get("num_drafts", "-"))),
        ("draft tokens accepted", f"{summary['accepted_tokens']} of {summary['drafted_tokens']}"),
        ("acceptance rate", number(summary["acceptance_rate"])),
        ("mean acceptance length", number(summary.get("mean_acceptance_length"))),
        ("acceptance by position", numbers(summary["acceptance_by_position"])),
        *((f"seconds of {name}", f"{value:.2f}") for name, value in stages if value >= 0.005),
        *(("fallback", f"{op}: {calls} calls") for op, calls in summary.get("fallback_calls", {}).items()),
    ]


def numbers(values: Iterable[float]) -> str:
    """Several figures for people."""
    return " ".join(map(number, values))


def number(value: float | None) -> str:
    """A figure for people; '-' where there is none."""
    return "-" if value is None else f"{value:.2f}"
