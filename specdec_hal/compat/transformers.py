"""Speculative decoding inside ``generate`` of Hugging Face `transformers`.

``model.generate(**inputs, custom_generate=specdec_hal.compat.transformers.generate)`` decodes with this project's
proposers and verifier: any batch size, greedy or sampled, one seed per request. The model's tensors and code run over
the engine's KV cache (:mod:`specdec_hal.models.transformers`). `assisted_generate` keeps the decode loop and cache of
`transformers` (batch 1, its random numbers) and only supplies drafts (:class:`DraftCandidates`); `generate` takes it
for what cannot run over the engine's cache.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray

from specdec_hal.plugin.versions import require

KNOWN_VERSIONS = tuple(f"5.{minor}" for minor in range(17, 25))
VERSION = require("transformers", KNOWN_VERSIONS, ["transformers"])

from transformers.cache_utils import DynamicCache  # noqa: E402
from transformers.generation import (  # noqa: E402
    CandidateGenerator,
    EosTokenCriteria,
    GenerateDecoderOnlyOutput,
    GenerationMixin,
    MaxLengthCriteria,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdec_hal.compat.defaults import default_drafter  # noqa: E402
from specdec_hal.errors import NoDistributionError, RequestError, UnsupportedError  # noqa: E402
from specdec_hal.loop.drafter import Drafter  # noqa: E402
from specdec_hal.loop.functional import verify  # noqa: E402
from specdec_hal.models.survey import compare, refused  # noqa: E402
from specdec_hal.models.transformers.loaded import target_of  # noqa: E402
from specdec_hal.models.transformers.recurrent import unsupported  # noqa: E402
from specdec_hal.plugin.model import FINAL_NORM, ForwardBatch, RecurrentModel, Segment, TargetModel  # noqa: E402
from specdec_hal.text import describe  # noqa: E402

_CACHE_NAMES = ("cache", "past_key_values")
"""Names of the argument with keys and values: since 5.24, and before."""
_PACKED = {*_CACHE_NAMES, "attention_mask", "position_ids", "use_cache", "logits_to_keep"}
"""Arguments of :meth:`generate` that rows over our cache do not need, or only as usual."""
_FREQUENCIES = 1 << 16
"""Most elements of a buffer that may be a rotary embedding's."""
_WARPERS = {
    TemperatureLogitsWarper: "temperature",
    TopKLogitsWarper: "top_k",
    TopPLogitsWarper: "top_p",
    MinPLogitsWarper: "min_p",
}
"""Processors that the verifier replaces, in this order."""
_NEVER = {
    "ClassifierFreeGuidanceLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
}
"""Logits processors that count their calls or run the model."""
_log = logging.getLogger("specdec_hal")
_assistable: WeakSet[Any] = WeakSet()
"""Models that passed the trial for assisted decoding."""


def generate(
    model: Any,
    input_ids: Any,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    seeds: int | Sequence[int] | None = None,
    num_speculative_tokens: int = 8,
    drafter: Drafter | None = None,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decode a batch with drafts: ``model.generate(..., custom_generate=generate, num_speculative_tokens=8)``.

    Greedy tokens equal those of plain ``model.generate``, provided that rounding decides none: attention is the
    engine's, and a pass has several tokens. With ``do_sample`` they depend only on `seeds`, one per row (an int: for
    all; None: drawn from PyTorch's generator), not on drafts, batch or padding. `drafter` None: n-gram look-up with at
    most `num_speculative_tokens` drafts; 0 decodes plainly.

    Prompts of a batch are padded on the left, as in `generate`. Logits processors see the same texts as in plain
    decoding, stopping criteria each token. The streamer of ``model.generate(streamer=...)`` gets the same tokens as in
    plain decoding, and its end on errors too. `transformers` does not pass the tokenizer to a custom `generate`: give
    stop strings as a ``StopStringCriteria``. The model is decoded in evaluation mode and stays as it is.

    What cannot run over the engine's cache goes through :func:`assisted_generate`; a warning in the log says why. That
    holds for models that :func:`~specdec_hal.models.transformers.loaded.target_of` refuses, a cache that was passed in,
    and scores or hidden states in the output. It also holds for other arguments of the model, and for positions that do
    not count from 0. Several rows, or `seeds`, are then an UnsupportedError.

    Raises UnsupportedError, before the first token, for unsupported features: beams, encoder-decoder models, caches
    other than the dynamic one, models whose state cannot be rolled back, and rotary embeddings that change with the
    length of this text.
    """
    streamer = _streamer_of_caller() if streamer is None else streamer
    with _ending(streamer):
        _check_cached(model, packed=True)
        _check(model, generation_config, logits_processor, model_kwargs)
        drafter = drafter or default_drafter(num_speculative_tokens)
        batch = _Batch(input_ids, model_kwargs.get("attention_mask"), stopping_criteria, generation_config)
        check_rotary(model, input_ids, batch.end)
        try:
            _check_packed(model, generation_config, model_kwargs, batch)
            target = target_of(model)
        except UnsupportedError as error:
            _check_cached(model)
            reason = str(error).rpartition("; ")[0]  # without the hint
            if len(input_ids) > 1 or (seeds is not None and generation_config.do_sample):
                raise UnsupportedError(
                    f"generate: {reason}: expected one prompt without seeds, as in the assisted decoding of "
                    "transformers; give it one prompt at a time without seeds, or leave custom_generate out"
                ) from error
            _log.warning("generate: %s; it goes through the assisted decoding of transformers", reason)
            return _assisted(
                model, input_ids, drafter, generation_config, streamer, logits_processor=logits_processor,
                stopping_criteria=stopping_criteria, **model_kwargs,
            )  # fmt: skip
        _decode(target, batch, _Sampling(logits_processor, generation_config, seeds, len(input_ids)), drafter, streamer)
    if streamer is not None:
        streamer.end()
    return batch.output(generation_config.return_dict_in_generate)


def _decode(target: TargetModel, batch: _Batch, sampling: _Sampling, drafter: Drafter, streamer: Any) -> None:
    """Decode all rows of a batch to their ends."""
    run = object()  # makes request names unique to this run
    target.allocate(len(batch.lengths), batch.end)
    if target.capabilities.recurrent:
        cast(RecurrentModel, target).allocate_states(len(batch.lengths), drafter.num_speculative_tokens)
    drafts: list[list[int]] = [[] for _ in batch.running]
    logits = _logits(target, batch.running, batch.prompts(), [0] * len(drafts), width=1)
    try:
        while True:
            rows = batch.running
            out = sampling.verify(logits, drafts, batch)
            batch.extend(out.token_ids.tolist(), out.counts.tolist())
            if streamer is not None:
                batch.stream(streamer)
            for row in set(rows).difference(batch.running):
                drafter.forget((run, row))
            if not batch.running:
                break
            drafts = batch.draft(drafter, run)
            cached = [batch.lengths[row] - batch.pads[row] - 1 for row in batch.running]
            logits = _logits(target, batch.running, batch.next(drafts), cached, width=1 + max(map(len, drafts)))
    finally:
        for row in batch.running:
            drafter.forget((run, row))


def _logits(target: TargetModel, rows: list[int], fed: list[Any], cached: list[int], width: int) -> Any:
    """Float32 logits [R, width, V] after the last `width` tokens that each row is `fed`; those of a shorter row repeat.

    `cached`: tokens of each row before them.
    """
    ends = np.cumsum([len(ids) for ids in fed])
    segments = [
        Segment(row, int(end) - len(ids), len(ids), position)
        for row, end, ids, position in zip(rows, ends, fed, cached, strict=True)
    ]
    hidden = target.forward(ForwardBatch(np.concatenate(fed), segments))[FINAL_NORM]
    windows = [np.arange(max(end - width, end - len(ids)), end) for end, ids in zip(ends, fed, strict=True)]
    index = np.array([np.pad(at, (0, width - len(at)), mode="edge") for at in windows])
    return target.compute_logits(hidden[index.ravel()]).unflatten(0, index.shape)


def assisted_generate(
    model: Any,
    input_ids: Any,
    *,
    num_speculative_tokens: int = 8,
    drafter: Drafter | None = None,
    generation_config: Any,
    streamer: Any = None,
    **arguments: Any,
) -> Any:
    """The assisted decoding of `transformers` with drafts of this project: ``custom_generate=assisted_generate``.

    During the call the model's factory of candidate generators is replaced. UnsupportedError for a model whose state
    cannot be rolled back, or whose rotary embedding changes with the length of this text.
    """
    streamer = _streamer_of_caller() if streamer is None else streamer
    with _ending(streamer):
        _check_cached(model)
        check_rotary(model, input_ids, generation_config.max_length)
        drafter = drafter or default_drafter(num_speculative_tokens)
        return _assisted(model, input_ids, drafter, generation_config, streamer, **arguments)


def _assisted(
    model: Any, input_ids: Any, drafter: Drafter, generation_config: Any, streamer: Any, **arguments: Any
) -> Any:
    _check_assisted(model, input_ids, _cache_of(arguments))
    candidates = DraftCandidates(drafter, generation_config.max_length, arguments["stopping_criteria"])
    model._get_candidate_generator = lambda **_: candidates
    try:
        return model._assisted_decoding(input_ids, generation_config=generation_config, streamer=streamer, **arguments)
    finally:
        del model._get_candidate_generator
        candidates.forget()


def _streamer_of_caller() -> Any:
    """The streamer of ``model.generate``, which does not pass it on to a custom one, or None."""
    code, frame = inspect.unwrap(GenerationMixin.generate).__code__, sys._getframe(1)
    while frame.f_code is not code:
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return frame.f_locals["streamer"]


@contextmanager
def _ending(streamer: Any) -> Iterator[None]:
    """End the stream on errors too, so that its reader does not wait forever."""
    try:
        yield
    except BaseException:
        if streamer is not None:
            streamer.end()
        raise


class DraftCandidates(CandidateGenerator):  # type: ignore[misc]
    """Drafts for the assisted decoding of `transformers`, for one text of up to `max_length` tokens.

    `stopping_criteria`: of the text. The library asks them after the last draft only, so drafts end where one applies.
    """

    requires_model_outputs = False

    def __init__(self, drafter: Drafter, max_length: int, stopping_criteria: Any = None) -> None:
        self._drafter, self._max_length, self._criteria = drafter, max_length, stopping_criteria

    def get_candidates(self, input_ids: Any, **kwargs: Any) -> tuple[Any, None]:
        """`input_ids` [1, n] followed by the drafts, without logits: drafts are compared exactly."""
        text = input_ids[0]
        room = min(self._max_length - len(text) - 1, self._drafter.num_speculative_tokens)
        (drafts,) = self._drafter.propose([text], [self], num_speculative_tokens=max(room, 0))
        ids = torch.cat((input_ids, input_ids.new_tensor([drafts], dtype=input_ids.dtype)), dim=1)
        ends = range(len(text) + 1, ids.shape[1]) if self._criteria else ()
        end = next((end for end in ends if self._criteria(ids[:, :end], None).all()), None)
        return ids[:, :end], None

    def update_candidate_strategy(self, input_ids: Any, scores: Any, num_matches: int) -> None:
        """Keep the number of drafts."""

    def forget(self) -> None:
        """Free the drafter's state for the text."""
        self._drafter.forget(self)


class _Batch:
    """The rows' texts and which rows still run."""

    def __init__(self, input_ids: Any, attention_mask: Any, criteria: Any, config: Any) -> None:
        size, self.prompt = input_ids.shape
        self.pads = [0] * size if attention_mask is None else (attention_mask == 0).sum(1).tolist()
        if attention_mask is not None and not (attention_mask.cumsum(1)[:, -1:] >= 1).all():
            raise RequestError("attention_mask: expected at least one token in every row, got a row of padding")
        if attention_mask is not None and (attention_mask.diff(dim=1) < 0).any():
            raise RequestError("attention_mask: expected prompts padded on the left only; use padding_side='left'")
        self.end = min([c.max_length for c in criteria if isinstance(c, MaxLengthCriteria)], default=config.max_length)
        ends = [c.eos_token_id.tolist() for c in criteria if isinstance(c, EosTokenCriteria)]
        self.end_tokens = sorted({token for tokens in ends for token in tokens})
        self._criteria = [c for c in criteria if not isinstance(c, (EosTokenCriteria, MaxLengthCriteria))]
        self._pad_token = int(config._pad_token_tensor) if config._pad_token_tensor is not None else 0
        self._device = input_ids.device
        self._texts = np.zeros((size, self.end), np.int64)
        self._texts[:, : self.prompt] = input_ids.cpu().numpy()
        self.lengths = [self.prompt] * size
        self.running = list(range(size))
        self._streamed = self.prompt

    def counted_by(self, positions: Any) -> bool:
        """Whether `positions` [B, prompt] count the tokens of each row from 0."""
        columns, pads = np.arange(self.prompt), np.array(self.pads)[:, None]
        expected = np.where(columns >= pads, columns - pads, 0)
        if positions.dim() != 2 or positions.shape[1] != self.prompt:
            return False
        return bool(np.array_equal(np.where(columns >= pads, positions.cpu().numpy(), 0), expected))

    def text(self, row: int, length: int | None = None) -> Any:
        """A row so far, padding included, for processors and criteria: [1, length]."""
        return torch.from_numpy(self._texts[row : row + 1, : length or self.lengths[row]]).to(self._device)

    def extend(self, tokens: list[list[int]], counts: list[int]) -> None:
        """Append each running row's new tokens, up to its end."""
        running = []
        for row, emitted, count in zip(self.running, tokens, counts, strict=True):
            if min(emitted[:count], default=-1) < 0:  # on a GPU; `verify` raises on the host
                raise _no_distribution(row)
            ended = emitted[count - 1] in self.end_tokens
            for token in emitted[:count]:
                self._texts[row, self.lengths[row]] = token
                self.lengths[row] += 1
                if any(bool(criterion(self.text(row), None).all()) for criterion in self._criteria):
                    ended = True
                    break
            if not ended and self.lengths[row] < self.end:
                running.append(row)
        self.running = running

    def stream(self, streamer: Any) -> None:
        """Put the tokens [B] of each completed step of plain decoding, with padding after a row's end."""
        now = min((self.lengths[row] for row in self.running), default=max(self.lengths))
        for column in range(self._streamed, now):
            ended = column >= np.array(self.lengths)
            streamer.put(torch.from_numpy(np.where(ended, self._pad_token, self._texts[:, column])))
        self._streamed = now

    def draft(self, drafter: Drafter, run: object) -> list[list[int]]:
        """Drafts for the running rows."""
        rows = self.running
        histories = [self._texts[row, self.pads[row] : self.lengths[row]] for row in rows]
        wanted = [min(drafter.num_speculative_tokens, self.end - self.lengths[row] - 1) for row in rows]
        return drafter.propose(histories, [(run, row) for row in rows], num_speculative_tokens=wanted)

    def prompts(self) -> list[NDArray[np.int64]]:
        """The tokens of each row without padding."""
        return [text[pads : self.prompt] for text, pads in zip(self._texts, self.pads, strict=True)]

    def next(self, drafts: list[list[int]]) -> list[NDArray[np.int64]]:
        """The last token and the drafts of each running row."""
        return [
            np.array([self._texts[row, self.lengths[row] - 1], *ids])
            for row, ids in zip(self.running, drafts, strict=True)
        ]

    def output(self, as_dict: bool) -> Any:
        """All texts, padded to the longest."""
        longest = max(self.lengths)
        texts = self._texts[:, :longest]
        for row, length in enumerate(self.lengths):
            texts[row, length:] = self._pad_token
        sequences = torch.from_numpy(texts.copy()).to(self._device)
        return GenerateDecoderOnlyOutput(sequences=sequences) if as_dict else sequences


class _Sampling:
    """How tokens are drawn: the verifier's parameters, and the logits processors before it."""

    def __init__(self, processors: Any, config: Any, seeds: Any, size: int) -> None:
        self._before = list(processors)
        self._params: dict[str, Any] = {"temperature": 1.0 if config.do_sample else 0.0}
        order = list(_WARPERS)
        while config.do_sample and self._before and type(self._before[-1]) in order:
            last = self._before[-1]
            if getattr(last, "min_tokens_to_keep", 1) != 1:
                break
            del order[order.index(type(last)) :]
            self._params[_WARPERS[type(last)]] = getattr(last, _WARPERS[type(last)])
            self._before.pop()
        if seeds is None:
            seeds = torch.randint(1 << 62, (size,)).tolist() if config.do_sample else 0
        self._seeds = np.broadcast_to(np.asarray(seeds), (size,)) if np.ndim(seeds) == 0 else np.asarray(seeds)
        if self._seeds.shape != (size,):
            raise RequestError(f"seeds: expected one number, or {size}, got {len(self._seeds)}")

    def verify(self, logits: Any, drafts: list[list[int]], batch: _Batch) -> Any:
        """Verify the drafts of the running rows."""
        rows = batch.running
        if self._before:
            logits = self._processed(logits, drafts, batch)
        elif logits.dtype == torch.float64:
            logits = logits.float()
        try:
            return verify(
                logits,
                drafts,
                seeds=self._seeds[rows],
                positions=[batch.lengths[row] - batch.pads[row] for row in rows],
                end_tokens=batch.end_tokens,
                max_new_tokens=[batch.end - batch.lengths[row] for row in rows],
                **self._params,
            )
        except NoDistributionError as error:
            raise _no_distribution(rows[error.requests[0]]) from error

    def _processed(self, logits: Any, drafts: list[list[int]], batch: _Batch) -> Any:
        """Float32 logits after each draft, as in plain decoding.

        Rows differ in length and processors may index rows, so each processor call replicates one row.
        """
        logits, size = logits.float().clone(), len(batch.lengths)
        for at, (row, ids) in enumerate(zip(batch.running, drafts, strict=True)):
            text = torch.cat((batch.text(row), batch.text(row).new_tensor([ids], dtype=torch.long)), dim=1)
            for i in range(len(ids) + 1):
                history = text[:, : batch.lengths[row] + i].repeat(size, 1)
                scores = logits[at, i].repeat(size, 1)
                for processor in self._before:
                    scores = processor(history, scores)
                logits[at, i] = scores[row]
        return logits


def _no_distribution(row: int) -> RequestError:
    return RequestError(f"row {row}: the model gave no distribution for the next token (NaN, or all -inf)")


def _check(model: Any, config: Any, processors: Any, model_kwargs: dict[str, Any]) -> None:
    """UnsupportedError for features that these loops lack."""
    names = {type(processor).__name__ for processor in processors}
    never = names & _NEVER
    cache = _cache_of(model_kwargs)
    wrong = {
        "an encoder-decoder model": model.config.is_encoder_decoder,
        f"num_beams {config.num_beams}": (config.num_beams or 1) > 1,
        "use_cache=False": not model_kwargs.get("use_cache"),
        "inputs_embeds": model_kwargs.get("inputs_embeds") is not None,
        "a cache of its own" if cache is None else f"a cache of type {type(cache).__name__}": type(cache)
        is not DynamicCache,
        ", ".join(sorted(never)): never,
    }
    for what, here in wrong.items():
        if here:
            raise UnsupportedError(
                f"generate: {what} cannot be decoded speculatively here; expected a decoder-only model and a dynamic "
                "cache; leave custom_generate out for the rest"
            )


def _check_cached(model: Any, packed: bool = False) -> None:
    """UnsupportedError for a model without a cache of keys and values.

    `packed`: the engine's cache holds states too.
    """
    stateful = getattr(model, "_is_stateful", False) and not (packed and not unsupported(type(model)))
    if stateful or _cache_name(model) is None:
        raise UnsupportedError(
            f"generate: {type(model).__name__} has no cache, or one that cannot drop a rejected draft; "
            "expected keys and values of each token in every layer; leave custom_generate out"
        )


def _check_assisted(model: Any, input_ids: Any, cache: Any) -> None:
    """UnsupportedError where the assisted decoding of `transformers` gives other tokens than its plain decoding."""
    if cache is not None and cache.get_seq_length() > 0:
        raise UnsupportedError(
            f"generate: expected an empty cache, got one of {cache.get_seq_length()} tokens; leave "
            "past_key_values out and pass the whole text, or leave custom_generate out"
        )
    if model.config.is_encoder_decoder or model in _assistable:
        return
    ids = torch.arange(1, 9, device=input_ids.device)[None] * 7919 % model.get_input_embeddings().num_embeddings
    (ids, drafts), cache = ids.split(5, 1), DynamicCache(config=model.config.get_text_config(decoder=True))
    name = str(_cache_name(model))
    try:
        expected = model(input_ids=ids, use_cache=False).logits[:, 2:]
        for tokens in (ids[:, :2], drafts):
            model(input_ids=tokens, use_cache=True, **{name: cache})
        cache.crop(-3)
        got = model(input_ids=ids[:, 2:], use_cache=True, **{name: cache}).logits
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # from the model's own code
        raise refused(model, f"its cache cannot drop rejected drafts ({describe(error)})") from error
    compare(model, expected, got, "its logits are others when several tokens follow its cache")
    _assistable.add(model)


def _check_packed(model: Any, config: Any, model_kwargs: dict[str, Any], batch: _Batch) -> None:
    """UnsupportedError for features that only :func:`assisted_generate` has."""
    name, cache, positions = type(model).__name__, _cache_of(model_kwargs), model_kwargs.get("position_ids")
    extra = sorted({name for name, value in model_kwargs.items() if value is not None} - _PACKED)
    given = cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0)
    outputs = config.output_scores, config.output_logits, config.output_attentions, config.output_hidden_states
    wrong = {
        "the cache that was passed in would not be filled": given,
        f"{name} needs {', '.join(extra)} in every step": extra,
        f"the position_ids of {name} are not 0, 1, ... in each prompt": positions is not None
        and not batch.counted_by(positions),
        "scores, logits, attentions or hidden states are wanted as output": config.return_dict_in_generate
        and any(outputs),
    }
    for what, here in wrong.items():
        if here:
            raise UnsupportedError(f"{what}; use assisted_generate")


def _cache_name(model: Any) -> str | None:
    names = inspect.signature(model.forward).parameters
    return next((name for name in _CACHE_NAMES if name in names), None)


def _cache_of(model_kwargs: dict[str, Any]) -> Any:
    return next((model_kwargs[name] for name in _CACHE_NAMES if model_kwargs.get(name) is not None), None)


def check_rotary(model: Any, input_ids: Any, end: int) -> None:
    """UnsupportedError for a rotary embedding that changes between the prompt `input_ids` and the `end` of its text.

    Drafts would be fed with frequencies other than those of plain decoding. Two passes of one token find that out; the
    model then has the frequencies of the prompt.
    """
    types = [module.rope_type for module in model.modules() if hasattr(module, "rope_type")]
    kinds = {kind for one in types for kind in (one.values() if isinstance(one, dict) else [one])}
    if not any("dynamic" in kind or kind == "longrope" for kind in kinds):
        return
    prompt, token = input_ids.shape[1], input_ids[:1, :1]

    def frequencies(position: int) -> dict[str, Any]:
        model(input_ids=token, position_ids=torch.full_like(token, position), use_cache=False)
        buffers = model.named_buffers()
        return {name: b.clone() for name, b in buffers if b.is_floating_point() and b.numel() <= _FREQUENCIES}

    after = frequencies(max(end - 2, prompt - 1))
    before = frequencies(prompt - 1)
    if changed := [name for name, values in before.items() if not torch.equal(values, after[name])]:
        raise UnsupportedError(
            f"generate: the rotary embedding of {type(model).__name__} ({', '.join(changed)}) changes with the length "
            f"of the text between its tokens {prompt} and {end}, which changes the logits of drafts; keep the "
            "whole batch on one side of the switch (max_new_tokens), or leave custom_generate out"
        )
