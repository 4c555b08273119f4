"""Continue one or several prompts. The text streams as it is decoded, accepted draft tokens highlighted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_hal.cli.decoding import Run, decode, load, metrics_rows, runtime_for
from specdec_hal.cli.output import Output, add_config_arguments
from specdec_hal.cli.prompts import Prompt, add_prompt_arguments, read_prompts
from specdec_hal.cli.tables import Rows
from specdec_hal.engine.progress import progress_bar

if TYPE_CHECKING:
    from rich.console import Console

    from specdec_hal.engine.runtime import Runtime
    from specdec_hal.models import Tokenizer
    from specdec_hal.runner import StreamDelta
    from specdec_hal.runner.journal import Record

HELP = "continue prompts and highlight accepted drafts"
ACCEPTED = "bold green"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Configuration, prompts, and what to show."""
    add_config_arguments(parser)
    add_prompt_arguments(parser)
    parser.add_argument("--echo", action="store_true", help="print each prompt before its continuation")
    parser.add_argument(
        "--resume", action="store_true", help="resume the requests in runner.journal, and show all of them"
    )
    parser.add_argument("--no-metrics", action="store_true", help="print only the text")


def run(args: argparse.Namespace, output: Output) -> int:
    """Generate; 1 if a request ended in an error."""
    runtime = runtime_for(args)
    saved = _journal(runtime, resume=args.resume)
    prompts = [] if saved is not None and not args.prompts else read_prompts(args)
    model, tokenizer = load(runtime)
    runner = runtime.runner(model=model, tokenizer=tokenizer)
    given = {prompt.name for prompt in prompts}
    prompts += [_saved_prompt(record, tokenizer) for record in saved or () if record["request_id"] not in given]
    stream = None if output.json else _Stream(output.console, prompts, echo=args.echo)
    # Streamed text needs no progress bar.
    watched = stream is not None and output.console.is_terminal
    total = runtime.config.sampling.max_new_tokens * len(prompts)
    with progress_bar("generating", total, "tokens", visible=not watched) as progress:
        result = decode(runner, prompts, None if stream is None else stream.push, progress, saved or ())
    failed = [one for one in result.outputs if one.finish_reason == "error"]
    if stream is None:
        output.document(_document(runtime, runner.config.speculative.method, prompts, result))
    else:
        if not args.no_metrics:
            _print_metrics(output.console, result, runtime.backend.name)
        for one in failed:
            output.console.print(
                f"request '{one.request_id}' ended in an error: {one.error}", style="red", soft_wrap=True
            )
    if runtime.config.runner.journal is not None:
        Path(runtime.config.runner.journal).unlink(missing_ok=True)
    return 1 if failed else 0


def _journal(runtime: Runtime, *, resume: bool) -> list[Record] | None:
    """Saved requests of an earlier run; None if there is nothing to resume."""
    from specdec_hal.runner import journal

    path, config = runtime.config.runner.journal, runtime.config
    if path is None:
        if resume:
            raise config.error("runner.journal", "--resume needs the journal of the run to resume; set it")
        return None
    if not Path(path).exists():
        return None
    journal.lock(Path(path))  # of a running process, which the error names
    if not resume:
        raise config.error("runner.journal", f"{path} is left over from an unfinished run; add --resume, or delete it")
    return journal.read(path)


def _saved_prompt(record: Record, tokenizer: Tokenizer) -> Prompt:
    return Prompt(record["request_id"], tokenizer.decode(record["prompt_token_ids"]))


class _Stream:
    """Prints texts in order, the first unfinished one live."""

    def __init__(self, console: Console, prompts: Sequence[Prompt], *, echo: bool) -> None:
        self.console, self.prompts, self.echo = console, prompts, echo
        self.current = 0
        self.waiting: list[list[tuple[str, bool]]] = [[] for _ in prompts]
        self.finished = [False] * len(prompts)
        self.at_line_start = True
        self._open()

    def push(self, index: int, delta: StreamDelta) -> None:
        """Add a step's output to a prompt."""
        self.waiting[index] += delta.spans
        self.finished[index] = delta.finish_reason is not None
        while self.current < len(self.prompts):
            for text, accepted in self.waiting[self.current]:
                self._write(text, ACCEPTED if accepted else None)
            self.waiting[self.current] = []
            if not self.finished[self.current]:
                break
            if not self.at_line_start:
                self._write("\n", None)
            self.current += 1
            self._open()

    def _open(self) -> None:
        if self.current == len(self.prompts):
            return
        prompt = self.prompts[self.current]
        if len(self.prompts) > 1:
            self._write(f"=== {prompt.name}\n", "bold")
        if self.echo:
            self._write(prompt.text, "dim")

    def _write(self, text: str, style: str | None) -> None:
        self.console.print(text, style=style, end="", soft_wrap=True)
        if text:
            self.at_line_start = text.endswith("\n")


def _print_metrics(console: Console, result: Run, backend: str) -> None:
    rows = Rows(f"Metrics, backend {backend}", ("", ""), header=False)
    for name, value in metrics_rows(result.figures):
        rows.add_row(name, value)
    console.print()
    rows.print(console)
    if console.is_terminal and result.summary["accepted_tokens"]:
        console.print("green: accepted draft tokens", style=ACCEPTED)


def _document(runtime: Runtime, method: str, prompts: Sequence[Prompt], result: Run) -> dict[str, Any]:
    return {
        "backend": runtime.backend.name,
        "method": method,
        "requests": [
            {
                "name": prompt.name,
                "prompt_tokens": one.prompt_tokens,
                "seed": one.seed,
                "text": one.text,
                "token_ids": list(one.token_ids),
                "accepted_draft": list(one.accepted_draft),
                "finish_reason": one.finish_reason,
                "error": one.error,
                "logprobs": [entry._asdict() for entry in one.logprobs],
                "prompt_logprobs": [entry and entry._asdict() for entry in one.prompt_logprobs],
            }
            for prompt, one in zip(prompts, result.outputs, strict=True)
        ],
        "seconds": result.seconds,
        "tokens_per_second": result.tokens_per_second,
        "metrics": result.summary,
    }
