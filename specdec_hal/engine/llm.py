"""Offline decoding: prompts in, finished outputs out, in the same order."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from specdec_hal.config import Config, Override, arguments, changed, parse
from specdec_hal.engine.progress import progress_bar
from specdec_hal.engine.runtime import Runtime, load
from specdec_hal.errors import ConfigError, EngineDeadError, RequestError
from specdec_hal.request import SAMPLING_NAMES
from specdec_hal.runner import ModelRunner, Request, RequestOutput, SamplingParams, StreamDelta
from specdec_hal.text import short

if TYPE_CHECKING:
    from specdec_hal.engine.rendering import Renderer
    from specdec_hal.models import Tokenizer
    from specdec_hal.models.chat import Message
    from specdec_hal.plugin.model import TargetModel
    from specdec_hal.plugin.registry import Registry

_log = logging.getLogger("specdec_hal")

TEXT, TOKENS = "prompt", "prompt_token_ids"
Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, which the tokenizer encodes, or token ids [n]; or, as in vLLM, a dictionary of one key, ``{"prompt": text}`` or
``{"prompt_token_ids": ids}``."""


def make_runner(
    model: str | os.PathLike[str] | TargetModel | None,
    config: str | os.PathLike[str] | Mapping[str, Any] | Config | Runtime | None,
    tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
    registry: Registry | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ModelRunner:
    """A runner for a model (a checkpoint folder, or an object; None: the configured one).

    `config`: a YAML file, a mapping shaped like one, a checked configuration, a result of :func:`specdec_hal.load`
    (which loaded `model`, if that is an object), or None for the defaults. `overrides`: see :class:`LLM`. Errors: see
    :func:`specdec_hal.load`.
    """
    folder = os.path.abspath(model) if isinstance(model, (str, os.PathLike)) else None
    if folder is None and model is not None and not hasattr(model, "capabilities"):
        configured = isinstance(model, (Mapping, Config, Runtime))
        got = "a configuration; pass config=" if configured else f"{short(model)}; pass LLM(FOLDER)"
        raise ConfigError(f"argument:model: expected a checkpoint folder or a loaded model, got {got}")
    if not isinstance(tokenizer, (str, os.PathLike, NoneType)) and not hasattr(tokenizer, "detokenizer"):
        expected = "a folder, or a loaded tokenizer with encode, decode and detokenizer"
        raise ConfigError(f"argument:tokenizer: expected {expected}, got {short(tokenizer)}; pass its folder")
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
    if isinstance(tokenizer, (str, os.PathLike)):
        from specdec_hal.models import load_tokenizer

        tokenizer = load_tokenizer(Path(tokenizer))
    loaded: Any = None if folder is not None else model
    runner = runtime.runner(model=loaded, tokenizer=tokenizer)
    if runtime is not config:
        runner.resources.callback(runtime.close)
    return runner


def encoded(prompt: Prompt, tokenizer: Tokenizer | None, add_special_tokens: bool) -> Sequence[int]:
    """The token ids of a prompt. RequestError for text without a tokenizer, and for other dictionaries."""
    given: Any = prompt
    if isinstance(given, Mapping):
        if list(given) not in ([TEXT], [TOKENS]):
            raise RequestError(f"prompt: expected a dictionary with the key {TEXT} or {TOKENS}, got {short(given)}")
        ((key, given),) = given.items()
        if isinstance(given, str) != (key == TEXT):
            raise RequestError(f"{key}: expected {'text' if key == TEXT else 'token ids'}, got {short(given)}")
    if not isinstance(given, str):
        return given  # type: ignore[no-any-return]
    if tokenizer is None:
        raise RequestError("a prompt of text needs a tokenizer; pass token ids, or give LLM a tokenizer")
    return tokenizer.encode(given, add_special_tokens)


def requests_of(name: str, prompt: Sequence[int], params: SamplingParams, **options: Any) -> list[Request]:
    """A request for each of the `n` choices: `name`, or `name`-0, `name`-1, ... of several. `options`: of each."""
    names = [name] if params.n == 1 else [f"{name}-{choice}" for choice in range(params.n)]
    return [Request(one, prompt, wanted, **options) for one, wanted in zip(names, params.choices(), strict=True)]


class LLM:
    """Decodes batches of prompts.

    ``LLM("models/tiny-py-lm", "configs/reference.yaml").generate(["def add(a, b):"])[0].text``. `model` is a checkpoint
    folder or a loaded model, `config` a YAML file, a mapping shaped like one, or a configuration; either may be
    omitted. `overrides`: keys of the sections `model`, `runner` and `engine`, or sections with some of their keys,
    which override `config`: ``LLM(folder, max_num_seqs=4, speculative={"method": "ngram"})``. vLLM's
    `tensor_parallel_size`, `num_gpu_blocks_override` and `speculative_config` are `tensor_parallel`, `num_kv_blocks`
    and `speculative`. `tokenizer`: a loaded one, or its folder; None: the checkpoint's. `registry`: of plug-ins; None:
    the process's own. With ``warm_up=True`` everything is compiled and captured before the first prompt
    (:meth:`ModelRunner.warm_up <specdec_hal.runner.ModelRunner.warm_up>`). ConfigError for settings, CheckpointError
    for files that are wrong.

    Leaving a ``with`` block closes it.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | TargetModel | None = None,
        config: str | os.PathLike[str] | Mapping[str, Any] | Config | Runtime | None = None,
        *,
        tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
        registry: Registry | None = None,
        **overrides: Any,
    ) -> None:
        self._renderers: dict[str | None, Renderer] = {}
        """The last one, by its template; None: the checkpoint's."""
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
        self._renderers.clear()
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

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer: ``encode(text)`` gives token ids, ``decode(ids)`` text.

        RequestError if the engine has none, EngineDeadError after close.
        """
        return _tokenizer(self.runner)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_special_tokens: bool = True,
        progress: bool | None = None,
        use_tqdm: bool | None = None,
        **sampling: Any,
    ) -> list[RequestOutput]:
        """Decode every prompt; `n` outputs each (:class:`SamplingParams`), in the order of the prompts.

        `prompts`: a text, token ids (a list, or an integer array or tensor [n] on the host), vLLM's ``{"prompt":
        text}`` or ``{"prompt_token_ids": ids}``, or a list of these; an array [B, n] has a prompt in each row.
        `sampling_params`: for all prompts, or one for each; None: :attr:`default_params`. Without a seed, each sampled
        prompt draws one. `sampling`: values of :class:`SamplingParams` that replace those, such as ``max_tokens=16``.
        `add_special_tokens`: add the tokenizer's special tokens, such as a BOS, to texts. `progress`, or vLLM's
        `use_tqdm`, draws a bar on a terminal (default: true). RequestError, with nothing decoded, if a prompt cannot be
        served; ParameterError for sampling parameters. EngineDeadError after close.
        """
        visible = _visible(progress, use_tqdm)
        texts = _each(prompts)
        params = self._per_prompt(sampling_params, len(texts), sampling)
        queued: dict[str, Prompt] = {}
        unfinished = sum(wanted.n for wanted in params)
        with _bar(unfinished, visible) as advance:

            def receive(delta: StreamDelta) -> None:
                nonlocal unfinished
                unfinished -= delta.finish_reason is not None
                advance(delta)

            try:
                for text, wanted in zip(texts, params, strict=True):
                    for request in self._requests(text, wanted, add_special_tokens, receive):
                        self.runner.add_request(request)
                        queued[request.request_id] = text
                while unfinished:
                    self.runner.step()
            except BaseException:
                self._drop(queued)
                raise
        finished = self.runner.take_finished(queued)
        return [replace(finished[name], prompt=_text(prompt)) for name, prompt in queued.items()]

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        add_special_tokens: bool = True,
        **sampling: Any,
    ) -> Generator[StreamDelta, None, None]:
        """Decode one prompt; yields its deltas as they come, decoded in the caller's thread.

        ``for delta in llm.stream("def add(a, b):", max_tokens=16): print(delta.text, end="")``. Arguments as those of
        :meth:`generate`. The last delta has a `finish_reason`; with `n` choices, deltas of all are interleaved, each
        with its `request_id`. The request begins with the first delta. Closing the iterator early, also by leaving its
        last reference, cancels the request and frees its slot. Several streams may be open, and :meth:`generate` may be
        called meanwhile: a step decodes all of them. RequestError at the first delta if the prompt cannot be served.
        """
        (params,) = self._per_prompt(sampling_params, 1, sampling)
        deltas: deque[StreamDelta] = deque()
        names: list[str] = []
        try:
            for request in self._requests(prompt, params, add_special_tokens, deltas.append):
                self.runner.add_request(request)
                names.append(request.request_id)
            unfinished = len(names)
            while unfinished:
                while not deltas:
                    self.runner.step()
                delta = deltas.popleft()
                unfinished -= delta.finish_reason is not None
                yield delta
        finally:
            self._drop(names)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: bool | None = None,
        use_tqdm: bool | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer a chat, or each of several; outputs as :meth:`generate` has them.

        `messages`: each with `role` and `content`. `chat_template`: a Jinja template; None: the checkpoint's.
        `options`: values of :class:`SamplingParams`, such as ``max_tokens=16``; others are of
        :meth:`ChatTemplate.render <specdec_hal.models.chat.ChatTemplate.render>`, such as ``tools``,
        ``add_generation_prompt`` or variables of the template. `chat_template_kwargs`: variables of the template, of
        any name. Messages and variables must be values that JSON can hold: the template is rendered in a process, in at
        most 5 s per chat (:mod:`specdec_hal.engine.rendering`). RequestError without a template, if it refuses the
        messages, or beyond these limits; CheckpointError for a `chat_template` that is no template.
        """
        if isinstance(messages, (str, Mapping)):
            raise RequestError(f"messages: expected a list of messages, or of such lists, got {short(messages)}")
        if not isinstance(chat_template, (str, NoneType)):
            raise RequestError(f"chat_template: expected the text of a Jinja template, got {short(chat_template)}")
        if not isinstance(chat_template_kwargs, (Mapping, NoneType)):
            raise RequestError(f"chat_template_kwargs: expected a dictionary, got {short(chat_template_kwargs)}")
        chats: Sequence[Any] = [messages] if messages and isinstance(messages[0], Mapping) else messages
        renderer = self._renderer(chat_template)
        sampling = {name: options.pop(name) for name in SAMPLING_NAMES & options.keys()}
        options |= chat_template_kwargs or {}
        prompts = [renderer.render_here({**options, "messages": chat}) for chat in chats]
        return self.generate(
            prompts, sampling_params, add_special_tokens=False, progress=progress, use_tqdm=use_tqdm, **sampling
        )

    def _renderer(self, source: str | None) -> Renderer:
        """That of a template; None: the checkpoint's."""
        from specdec_hal.engine.rendering import Renderer
        from specdec_hal.models.chat import ChatTemplate, load_chat_template, missing_template, special_tokens

        if source not in self._renderers:
            config = self.runner.config
            if source is not None:
                path = config.model.path
                found: ChatTemplate | None = ChatTemplate(source, {} if path is None else special_tokens(Path(path)))
            else:
                found = load_chat_template(config.model_path, config.serve.chat_template)
            if found is None:
                raise missing_template(config.served_name, "pass chat_template=, a Jinja template")
            self._renderers = {source: Renderer(found)}
        return self._renderers[source]

    def _requests(
        self, prompt: Prompt, params: SamplingParams, add_special_tokens: bool, callback: Callable[[StreamDelta], None]
    ) -> list[Request]:
        tokens = encoded(prompt, self.runner.tokenizer, add_special_tokens)
        return requests_of(f"llm-{next(self._numbers)}", tokens, params, callback=callback)

    def _drop(self, names: Collection[str]) -> None:
        """Cancel requests, and forget their outputs."""
        if self._runner is not None:
            for name in names:
                self._runner.cancel(name)
            self._runner.take_finished(names)

    def _per_prompt(self, given: Any, prompts: int, changes: Mapping[str, Any]) -> Sequence[SamplingParams]:
        """Sampling parameters of each prompt, with these changes."""
        if given is None or isinstance(given, SamplingParams):
            return [(given or self.default_params).updated(**changes)] * prompts
        several = isinstance(given, (list, tuple)) and all(isinstance(one, SamplingParams) for one in given)
        if not several or len(given) != prompts:
            got = len(given) if several else short(given)
            raise RequestError(f"expected one SamplingParams, or one for each of {prompts} prompts, got {got}")
        return [one.updated(**changes) for one in given]


def _tokenizer(runner: ModelRunner) -> Tokenizer:
    if runner.tokenizer is None:
        raise RequestError("the engine has no tokenizer; pass tokenizer=")
    return runner.tokenizer


def _text(prompt: Prompt) -> str | None:
    """The text of a prompt, if it is one."""
    text = prompt.get(TEXT) if isinstance(prompt, Mapping) else prompt
    return text if isinstance(text, str) else None


def _visible(progress: bool | None, use_tqdm: bool | None) -> bool:
    """Whether to draw a bar; RequestError if the two names of the argument differ."""
    given = {one for one in (progress, use_tqdm) if one is not None}
    if len(given) > 1:
        raise RequestError(f"use_tqdm: another name of 'progress', expected {progress} as there, got {use_tqdm}")
    return given.pop() if given else True


def _each(prompts: Any) -> Sequence[Prompt]:
    """The prompts in the argument of :meth:`LLM.generate`; RequestError if it is not a sequence."""
    dimensions = getattr(prompts, "ndim", 1)
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if dimensions == 2:
        return list(prompts)
    if dimensions != 1 or not hasattr(prompts, "__getitem__") or isinstance(prompts, (bytes, bytearray)):
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
def _bar(total: int, visible: bool) -> Iterator[Callable[[StreamDelta], None]]:
    """A progress bar over requests, with the tokens so far; yields the callback of every request."""
    unit = "{task.fields[tokens]} tokens"
    with progress_bar("decoding", total, unit, visible=visible, transient=False, tokens=0) as show:
        tokens = 0

        def advance(delta: StreamDelta) -> None:
            nonlocal tokens
            tokens += len(delta.token_ids)
            show(advance=delta.finish_reason is not None, tokens=tokens)

        yield advance
