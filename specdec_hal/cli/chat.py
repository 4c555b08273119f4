"""Chat with a model in the terminal. Answers stream as they are decoded, accepted draft tokens highlighted.

Each line of input is a message; an empty line is ignored. /clear starts over, /exit and Ctrl-D end the chat. From a
pipe, each line is a message as well, and --json prints all messages once the input ends.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specdec_hal.cli.decoding import load
from specdec_hal.cli.generate import ACCEPTED
from specdec_hal.cli.output import Output, add_config_arguments, read_runtime

if TYPE_CHECKING:
    from specdec_hal.engine.rendering import Renderer
    from specdec_hal.runner import ModelRunner, StreamDelta

HELP = "chat with a model, with the accepted drafts highlighted"
CLEAR, EXIT = "/clear", "/exit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Configuration, model, and system message."""
    add_config_arguments(parser)
    parser.add_argument("--system", metavar="TEXT", help="the system message at the start of the chat")
    parser.add_argument(
        "--chat-template", metavar="FILE", help="Jinja template file for messages (default: the checkpoint's)"
    )
    parser.add_argument("--max-new-tokens", metavar="N", help="same as --set sampling.max_new_tokens=N")


def run(args: argparse.Namespace, output: Output) -> int:
    """Chat until the input ends; 1 if an answer ended in an error."""
    from specdec_hal.engine.rendering import Renderer
    from specdec_hal.models.chat import load_chat_template, missing_template

    if args.chat_template is not None:
        args.overrides.append(f"serve.chat_template={json.dumps(args.chat_template)}")
    if args.max_new_tokens is not None:
        args.overrides.append(f"sampling.max_new_tokens={args.max_new_tokens}")
    runtime = read_runtime(args)
    template = load_chat_template(runtime.config.model_path, runtime.config.serve.chat_template)
    if template is None:
        raise missing_template(runtime.config.served_name)
    model, tokenizer = load(runtime)
    return _Chat(runtime.runner(model=model, tokenizer=tokenizer), Renderer(template), args.system, output).run()


class _Chat:
    """The messages so far, and the turns that add to them."""

    def __init__(self, runner: ModelRunner, renderer: Renderer, system: str | None, output: Output) -> None:
        self._runner, self._renderer, self._output = runner, renderer, output
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._first)
        self._answers: list[dict[str, Any]] = []

    def run(self) -> int:
        """Until the input ends; the exit status."""
        failed = False
        for line in self._lines():
            if line == EXIT:
                break
            if line == CLEAR:
                self._messages = list(self._first)
                continue
            failed |= not self._turn(line)
        if self._output.json:
            self._output.document({"messages": self._messages, "answers": self._answers})
        return int(failed)

    def _lines(self) -> Iterator[str]:
        """Non-empty lines, asked for at a terminal."""
        asked = sys.stdin.isatty() and not self._output.json
        while True:
            try:
                line = input("> ") if asked else next(sys.stdin)
            except (EOFError, StopIteration):
                return
            if line.strip():
                yield line.strip()

    def _turn(self, text: str) -> bool:
        """Send one message; False, with the chat unchanged, if the answer ended in an error."""
        from specdec_hal.runner import Request

        messages = [*self._messages, {"role": "user", "content": text}]
        runner = self._runner
        assert runner.tokenizer is not None
        text = self._renderer.render_here({"messages": messages})
        prompt = runner.tokenizer.encode(text, add_special_tokens=False)
        name = f"turn-{len(self._answers)}"
        show = None if self._output.json else self._show
        runner.add_request(Request(name, prompt, runner.default_params, show))
        try:
            while runner.has_requests:
                runner.step()
        except KeyboardInterrupt:  # ends this answer, not the chat
            runner.cancel(name)
        answer = runner.take_finished()[name]
        counts = {"prompt_tokens": answer.prompt_tokens, "seed": answer.seed, "tokens": len(answer.token_ids)}
        drafts = {"drafted_tokens": answer.drafted, "accepted_tokens": answer.accepted}
        self._answers.append({**counts, **drafts, "finish_reason": answer.finish_reason, "error": answer.error})
        failed = answer.finish_reason == "error"
        if not failed:
            self._messages = [*messages, {"role": "assistant", "content": answer.text}]
        if not self._output.json:
            end = answer.error if failed else f"{answer.accepted} of {answer.drafted} draft tokens accepted"
            self._output.console.print(f"\n{end}\n", style="red" if failed else "dim", soft_wrap=True)
        return not failed

    def _show(self, delta: StreamDelta) -> None:
        for text, accepted in delta.spans:
            self._output.console.print(text, style=ACCEPTED if accepted else None, end="", soft_wrap=True)
