"""Offline decoding: prompts in, finished outputs out, in the same order."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_hal.config import Config, Override, arguments, changed, parse
from specdec_hal.engine.progress import progress_bar
from specdec_hal.engine.runtime import Runtime, load
from specdec_hal.errors import ConfigError, EngineDeadError, RequestError
from specdec_hal.runner import ModelRunner, Request, RequestOutput, SamplingParams, StreamDelta
from specdec_hal.text import short

if TYPE_CHECKING:
    from specdec_hal.models import Tokenizer
    from specdec_hal.models.chat import ChatTemplate, Message
    from specdec_hal.plugin.model import TargetModel
    from specdec_hal.plugin.registry import Registry

_log = logging.getLogger("specdec_hal")

Prompt = str | Sequence[int]
"""Text, which the tokenizer encodes, or token ids."""


def make_runner(
    model: str | os.PathLike[str] | TargetModel | None,
    config: str | os.PathLike[str] | Mapping[str, Any] | Config | Runtime | None,
    tokenizer: Tokenizer | None = None,
    registry: Registry | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ModelRunner:
    """A runner for a model (a checkpoint folder, or an object; None: the configured one).

    `config`: a YAML file, a mapping shaped like one, a checked configuration, a result of :func:`specdec_hal.load`
    (which loaded `model`, if that is an object), or None for the defaults. `overrides`: see :class:`LLM`. Errors: see
    :func:`specdec_hal.load`.
    """
    if isinstance(model, (Mapping, Config, Runtime)):
        raise ConfigError(
            "argument:model: expected a checkpoint folder or a loaded model, got a configuration; pass config="
        )
    folder = os.path.abspath(model) if isinstance(model, (str, os.PathLike)) else None
    registry = config.registry if isinstance(config, Runtime) else registry
    changes: list[Override] = [] if folder is None else [("model.path", folder)]
    changes += arguments(overrides or {}, registry)
    if isinstance(config, Runtime) and not changes:
        runtime = config
    elif isinstance(config, (Config, Runtime)):
        settings = config.config if isinstance(config, Runtime) else config
        runtime = Runtime(changed(settings, changes, registry) if changes else settings, registry)
    elif isinstance(config, (str, os.PathLike)):
        runtime = load(config, changes, registry=registry)
    else:
        runtime = Runtime(parse({} if config is None else config, changes, registry=registry), registry)
    loaded: Any = None if folder is not None else model
    runner = runtime.runner(model=loaded, tokenizer=tokenizer)
    if runtime is not config:
        runner.resources.callback(runtime.close)
    return runner


def requests_of(name: str, prompt: Sequence[int], params: SamplingParams, **options: Any) -> list[Request]:
    """A request for each of the `n` choices: `name`, or `name`-0, `name`-1, ... of several. `options`: of each."""
    names = [name] if params.n == 1 else [f"{name}-{choice}" for choice in range(params.n)]
    return [Request(one, prompt, wanted, **options) for one, wanted in zip(names, params.choices(), strict=True)]


class LLM:
    """Decodes batches of prompts.

    ``LLM("models/tiny-py-lm", "configs/reference.yaml").generate(["def add(a, b):"])[0].text``. `model` is a checkpoint
    folder or a loaded model, `config` a YAML file, a mapping shaped like one, or a configuration; either may be
    omitted. `overrides`: keys of the sections `model`, `runner` and `engine`, or sections with some of their keys,
    which override `config`: ``LLM(folder, max_num_seqs=4, speculative={"method": "ngram"})``. With ``warm_up=True``
    everything is compiled and captured before the first prompt (:meth:`ModelRunner.warm_up
    <specdec_hal.runner.ModelRunner.warm_up>`).

    Leaving a ``with`` block closes it.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | TargetModel | None = None,
        config: str | os.PathLike[str] | Mapping[str, Any] | Config | Runtime | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        registry: Registry | None = None,
        **overrides: Any,
    ) -> None:
        self._runner: ModelRunner | None = make_runner(model, config, tokenizer, registry, overrides)
        if self._runner.config.engine.warm_up:
            warm_up(self._runner)
        self._numbers = count()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the model, its caches and captured steps, and end the processes that share it. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
            del runner
            gc.collect()  # its parts refer to each other

    @property
    def runner(self) -> ModelRunner:
        """The runner; EngineDeadError after close."""
        if self._runner is None:
            raise EngineDeadError("the LLM was closed; create another")
        return self._runner

    @property
    def default_params(self) -> SamplingParams:
        """Parameters of prompts without any: see :meth:`SamplingParams.default`."""
        return self.runner.default_params

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_special_tokens: bool = True,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Decode every prompt; `n` outputs each (:class:`SamplingParams`), in the order of the prompts.

        `prompts`: a text, token ids (a list, or an integer array or tensor [n] on the host), or a list of these; an
        array [B, n] has a prompt in each row.
        `sampling_params`: for all prompts, or one for each; None: :attr:`default_params`. Without a seed, each sampled
        prompt draws one. `add_special_tokens`: add the tokenizer's special tokens, such as a BOS, to texts. `progress`
        draws a bar on a terminal. RequestError, with nothing decoded, if a prompt cannot be served.
        """
        texts = _each(prompts)
        params = self._per_prompt(sampling_params, len(texts))
        queued: list[str] = []
        with _bar(sum(wanted.n for wanted in params), progress) as advance:
            try:
                for text, wanted in zip(texts, params, strict=True):
                    name, tokens = f"llm-{next(self._numbers)}", self._encode(text, add_special_tokens)
                    for request in requests_of(name, tokens, wanted, callback=advance):
                        self.runner.add_request(request)
                        queued.append(request.request_id)
                while self.runner.has_requests:
                    self.runner.step()
            except BaseException:
                for name in queued:
                    self.runner.cancel(name)
                self.runner.take_finished()
                raise
        finished = self.runner.take_finished()
        return [finished[name] for name in queued]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template: str | None = None,
        progress: bool = True,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer a chat, or each of several; outputs as :meth:`generate` has them.

        `messages`: each with `role` and `content`. `chat_template`: a Jinja template; None: the checkpoint's.
        `template_options`: of :meth:`ChatTemplate.render <specdec_hal.models.chat.ChatTemplate.render>`, such as
        ``tools``, ``add_generation_prompt`` or variables of the template. RequestError without a template, or if it
        refuses the messages.
        """
        if isinstance(messages, (str, Mapping)):
            raise RequestError(f"messages: expected a list of messages, or of such lists, got {short(messages)}")
        chats: Sequence[Any] = [messages] if messages and isinstance(messages[0], Mapping) else messages
        template = self._chat_template if chat_template is None else self._chat_template_of(chat_template)
        prompts = [template.render(chat, **template_options) for chat in chats]
        return self.generate(prompts, sampling_params, add_special_tokens=False, progress=progress)

    @cached_property
    def _chat_template(self) -> ChatTemplate:
        from specdec_hal.models.chat import load_chat_template, missing_template

        config = self.runner.config
        found = load_chat_template(config.model_path, config.serve.chat_template)
        if found is None:
            raise missing_template(config.served_name)
        return found

    def _chat_template_of(self, source: str) -> ChatTemplate:
        from specdec_hal.models.chat import ChatTemplate, special_tokens

        path = self.runner.config.model.path
        return ChatTemplate(source, {} if path is None else special_tokens(Path(path)))

    def _encode(self, prompt: Prompt, add_special_tokens: bool) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        if self.runner.tokenizer is None:
            raise RequestError("a prompt of text needs a tokenizer; pass token ids, or give LLM a tokenizer")
        return self.runner.tokenizer.encode(prompt, add_special_tokens)

    def _per_prompt(self, given: Any, prompts: int) -> Sequence[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [given or self.default_params] * prompts
        several = isinstance(given, (list, tuple)) and all(isinstance(one, SamplingParams) for one in given)
        if not several or len(given) != prompts:
            got = len(given) if several else short(given)
            raise RequestError(f"expected one SamplingParams, or one for each of {prompts} prompts, got {got}")
        return given  # type: ignore[no-any-return]


def _each(prompts: Any) -> Sequence[Prompt]:
    """The prompts in the argument of :meth:`LLM.generate`; RequestError if it is not a sequence."""
    dimensions = getattr(prompts, "ndim", 1)
    if isinstance(prompts, str):
        return [prompts]
    if dimensions == 2:
        return list(prompts)
    if dimensions != 1 or not hasattr(prompts, "__getitem__") or isinstance(prompts, (bytes, bytearray, Mapping)):
        raise RequestError(
            f"prompts: expected a text, token ids, or a list of these, got {short(prompts)}; pass a list of prompts"
        )
    if len(prompts) == 0:
        return []
    first = prompts[0]
    several = isinstance(first, (str, bytes, Sequence, Mapping)) or first is None or getattr(first, "ndim", 0) > 0
    return prompts if several else [prompts]


def warm_up(runner: ModelRunner, progress: Callable[[int, int], None] = lambda done, steps: None) -> None:
    """Warm a runner up, with a bar on a terminal, and log how long it took."""
    began, total = time.perf_counter(), 0
    with progress_bar("warming up", None, "steps", transient=False) as show:

        def advance(done: int, steps: int) -> None:
            nonlocal total
            total = steps
            show(completed=done, total=steps)
            progress(done, steps)

        runner.warm_up(advance)
    if total:
        _log.info("warmed up: %d steps in %.1f s", total, time.perf_counter() - began)


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[StreamDelta], None]]:
    """A progress bar over requests, with the tokens so far; yields the callback of every request."""
    unit = "{task.fields[tokens]} tokens"
    with progress_bar("decoding", total, unit, shown=shown, transient=False, tokens=0) as show:
        tokens = 0

        def advance(delta: StreamDelta) -> None:
            nonlocal tokens
            tokens += len(delta.token_ids)
            show(advance=delta.finish_reason is not None, tokens=tokens)

        yield advance
